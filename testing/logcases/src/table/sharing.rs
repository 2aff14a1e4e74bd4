//! Extents that several files share, and data that is written in place or past the page cache.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case(
        "dedupe",
        "write f 0 a64k; write g 0 a64k; sync; dedupe f 0 g 0 64k; fsync g",
        &["f = a64k; g = a64k"],
    ),
    case(
        "dedupe_then_overwrite",
        "write f 0 a64k; write g 0 b16k+a48k; sync; dedupe f 16k g 16k 32k; write f 16k c16k; fsync f; fsync g",
        &["f = a16k+c16k+a32k; g = b16k+a48k"],
    ),
    case(
        "dedupe_of_what_is_new",
        "sync; write f 0 a64k; write g 0 a64k; fsync f; dedupe f 0 g 0 64k; fsync g",
        &["f = a64k; g = a64k"],
    ),
    case(
        "overlapping_parts_cloned",
        "write g 0 a16k+b16k+c16k+d16k; sync; clone g 0 f 0 32k; clone g 16k h 0 32k; fsync f; fsync h",
        &["f = a16k+b16k; g = a16k+b16k+c16k+d16k; h = b16k+c16k"],
    ),
    noted(
        "overlapping_parts_cloned_of_what_is_new",
        "sync; write g 0 a16k+b16k+c16k+d16k; clone g 0 f 0 32k; clone g 16k h 0 32k; fsync f; fsync h",
        &["f = a16k+b16k; h = b16k+c16k; ?g = a16k+b16k+c16k+d16k | -"],
        "the extent comes back from two logged parts; checksums of the part that both have are logged twice",
    ),
    case(
        "overlapping_parts_cloned_within_the_file",
        "sync; write f 0 a16k+b16k+c16k; fsync f; clone f 0 f 64k 32k; clone f 16k f 96k 32k; fsync f",
        &["f = a16k+b16k+c16k+.16k+a16k+b16k+b16k+c16k"],
    ),
    case(
        "in_place_overwrite",
        "in-place f; write f 0 a16k; sync; write f 4k b4k; fsync f",
        &["f = a4k+b4k+a8k; f in-place"],
    ),
    case(
        "in_place_overwrite_fdatasync",
        "in-place f; write f 0 a16k; sync; write f 4k b4k; fdatasync f",
        &["f = a4k+b4k+a8k; f in-place"],
    )
    .writes_nothing(),
    case(
        "in_place_append",
        "in-place f; write f 0 a8k; sync; write f 8k b8k; fsync f",
        &["f = a8k+b8k; f in-place"],
    ),
    case(
        "in_place_new_file",
        "sync; in-place f; write f 0 a8k; fsync f",
        &["f = a8k; f in-place"],
    ),
    case(
        "in_place_cloned_then_overwritten",
        "in-place f; in-place g; write f 0 a16k; sync; clone f 0 g 0 16k; write f 0 b4k; fsync f; fsync g",
        &["f = b4k+a12k; g = a16k; f in-place; g in-place"],
    ),
    case(
        "direct_overwrite",
        "write f 0 a16k; sync; write-direct f 4k b4k; fsync f",
        &["f = a4k+b4k+a8k"],
    ),
    case(
        "direct_new_file_fdatasync",
        "sync; write-direct f 0 a64k; fdatasync f",
        &["f = a64k"],
    ),
    case(
        "direct_into_prealloc",
        "create f; prealloc f 0 64k; sync; write-direct f 16k b4k; fdatasync f",
        &["f = .16k+b4k+.44k"],
    ),
];
