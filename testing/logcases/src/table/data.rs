//! Contents and sizes.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case("new_file", "sync; write f 0 a8k; fsync f", &["f = a8k; f links 1"]),
    case("new_empty_file", "sync; create f; fsync f", &["f = -"]),
    case("new_inline_file", "sync; write f 0 a100; fsync f", &["f = a100"]),
    case("new_file_fdatasync", "sync; write f 0 a8k; fdatasync f", &["f = a8k"]),
    case(
        "append",
        "write f 0 a8k; sync; write f 8k b8k; fsync f",
        &["f = a8k+b8k"],
    ),
    case(
        "append_fdatasync",
        "write f 0 a5000; sync; write f 5000 b5000; fdatasync f",
        &["f = a5000+b5000"],
    ),
    case(
        "overwrite",
        "write f 0 a16k; sync; write f 4k b4k; fsync f",
        &["f = a4k+b4k+a8k"],
    ),
    case(
        "overwrite_fdatasync",
        "write f 0 a16k; sync; write f 4k b4k; fdatasync f",
        &["f = a4k+b4k+a8k"],
    ),
    case(
        "overwrite_unaligned",
        "write f 0 a16k; sync; write f 1000 b5000; fsync f",
        &["f = a1000+b5000+a10384"],
    ),
    case(
        "write_through_o_sync",
        "create f; sync; write-sync f 0 a8k",
        &["f = a8k"],
    ),
    case(
        "write_through_o_dsync",
        "create f; sync; write-dsync f 0 a8k",
        &["f = a8k"],
    ),
    case(
        "o_sync_twice",
        "create f; sync; write-sync f 0 a8k; write-sync f 4k b8k",
        &["f = a4k+b8k"],
    ),
    case("new_file_o_sync", "sync; write-sync f 0 a8k", &["f = a8k"]),
    case(
        "mapped_write",
        "write f 0 a16k; sync; write-mapped f 4k b4k; fsync f",
        &["f = a4k+b4k+a8k"],
    ),
    case(
        "mapped_write_fdatasync",
        "write f 0 a16k; sync; write-mapped f 8k b8k; fdatasync f",
        &["f = a8k+b8k"],
    ),
    case(
        "truncate_down",
        "write f 0 a16k; sync; truncate f 5000; fsync f",
        &["f = a5000"],
    ),
    case(
        "truncate_up",
        "write f 0 a4k; sync; truncate f 16k; fsync f",
        &["f = a4k+.12k"],
    ),
    case(
        "truncate_up_fdatasync",
        "write f 0 a4k; sync; truncate f 16k; fdatasync f",
        &["f = a4k+.12k"],
    ),
    case(
        "truncate_down_fdatasync",
        "write f 0 a16k; sync; truncate f 5000; fdatasync f",
        &["f = a5000"],
    ),
    case(
        "truncate_to_nothing_fdatasync",
        "write f 0 a16k; sync; truncate f 0; fdatasync f",
        &["f = -"],
    ),
    case(
        "prealloc_fdatasync",
        "write f 0 a4k; sync; prealloc f 0 64k; fdatasync f",
        &["f = a4k+.60k"],
    ),
    case(
        "zero_range_fdatasync",
        "write f 0 a16k; sync; zero f 8k 16k; fdatasync f",
        &["f = a8k+.16k"],
    ),
    case(
        "each_change_of_size_and_an_fdatasync",
        "write f 0 a8k; sync; write f 8k b8k; fdatasync f; truncate f 12k; fdatasync f; prealloc f 12k 20k; fdatasync f; truncate f 40k; fdatasync f; write f 36k c4k; fdatasync f",
        &["f = a8k+b4k+.24k+c4k"],
    ),
    case(
        "truncate_to_nothing_and_write",
        "write f 0 a16k; sync; truncate f 0; write f 0 b4k; fsync f",
        &["f = b4k"],
    ),
    case(
        "truncate_down_and_up",
        "write f 0 a16k; sync; truncate f 4k; truncate f 16k; fsync f",
        &["f = a4k+.12k"],
    ),
    case(
        "truncate_down_and_up_between_two_fsyncs",
        "write f 0 a64k; sync; write f 0 b8k; fsync f; truncate f 6000; truncate f 64k; fsync f",
        &["f = b6000+.59536"],
    ),
    case(
        "truncate_after_append_was_logged",
        "write f 0 a8k; sync; write f 8k b32k; fsync f; truncate f 12k; fsync f",
        &["f = a8k+b4k"],
    ),
    case(
        "punch",
        "write f 0 a16k; sync; punch f 4k 8k; fsync f",
        &["f = a4k+.8k+a4k"],
    ),
    case(
        "punch_unaligned",
        "write f 0 a16k; sync; punch f 1000 10000; fsync f",
        &["f = a1000+.10000+a5384"],
    ),
    case(
        "punch_all",
        "write f 0 a16k; sync; punch f 0 16k; fsync f",
        &["f = .16k"],
    ),
    case(
        "punch_what_was_logged",
        "sync; write f 0 a64k; fsync f; punch f 16k 16k; fsync f",
        &["f = a16k+.16k+a32k"],
    ),
    case(
        "punch_after_small_append",
        "write f 0 a128k; sync; punch f 64k 4k; write f 128k b4k; fsync f",
        &["f = a64k+.4k+a60k+b4k"],
    ),
    case(
        "punch_fdatasync",
        "write f 0 a16k; sync; punch f 4k 8k; fdatasync f",
        &["f = a4k+.8k+a4k"],
    ),
    case(
        "zero_range",
        "write f 0 a16k; sync; zero f 4k 8k; fsync f",
        &["f = a4k+.8k+a4k"],
    ),
    case(
        "prealloc_new_file",
        "sync; create f; prealloc f 0 64k; fsync f",
        &["f = .64k"],
    ),
    case(
        "prealloc_beyond_end",
        "write f 0 a8k; sync; prealloc-keep f 8k 1m; fsync f",
        &["f = a8k"],
    ),
    case(
        "prealloc_beyond_end_then_append",
        "write f 0 a8k; prealloc-keep f 8k 1m; sync; write f 8k b8k; fsync f; write f 16k c8k; fsync f",
        &["f = a8k+b8k+c8k"],
    ),
    case(
        "prealloc_beyond_end_cut_off",
        "write f 0 a8k; sync; prealloc-keep f 8k 1m; fsync f; truncate f 8k; fsync f",
        &["f = a8k"],
    ),
    case(
        "write_into_prealloc",
        "create f; prealloc f 0 1m; sync; write f 64k b4k; fsync f",
        &["f = .64k+b4k+.956k"],
    ),
    noted(
        "clone_of_what_was_written_into_prealloc",
        "create f; prealloc f 0 64k; sync; write f 16k b16k; clone f 16k g 0 16k; fsync g",
        &["g = b16k; f = .64k | .16k+b16k+.32k"],
        "two files share an extent; to the one it may be preallocated still, to the other it has checksums",
    ),
    case(
        "prealloc_then_truncate_up",
        "write f 0 a4k; sync; prealloc-keep f 0 1m; truncate f 8k; fsync f",
        &["f = a4k+.4k"],
    ),
    case(
        "clone_new_file",
        "write g 0 a64k; sync; clone g 0 f 0 64k; fsync f",
        &["f = a64k; g = a64k"],
    ),
    case(
        "clone_part",
        "write g 0 a64k; write f 0 b64k; sync; clone g 16k f 32k 16k; fsync f",
        &["f = b32k+a16k+b16k; g = a64k"],
    ),
    case(
        "clone_within_a_file",
        "write f 0 a16k+b16k; sync; clone f 0 f 16k 8k; fsync f",
        &["f = a16k+a8k+b8k"],
    ),
    case(
        "clone_of_what_is_new",
        "sync; write g 0 a64k; fsync g; clone g 0 f 0 64k; fsync f",
        &["f = a64k; g = a64k"],
    ),
    noted(
        "clone_then_source_overwritten",
        "write g 0 a64k; sync; clone g 0 f 0 64k; write g 0 b64k; fsync f",
        &["f = a64k; g = a64k | b64k"],
        "sharing ends without the copy noticing",
    ),
    noted(
        "logged_twice",
        "sync; write f 0 b16k; fsync f; write f 4k c4k; fsync f",
        &["f = b4k+c4k+b8k"],
        "the second log replaces extents of the first",
    ),
    case(
        "logged_twice_same_range",
        "write f 0 a16k; sync; write f 0 b16k; fsync f; write f 0 c16k; fsync f",
        &["f = c16k"],
    ),
    case(
        "logged_then_changed",
        "sync; write f 0 b16k; fsync f; write f 0 c16k",
        &["f = b16k | c16k"],
    ),
    case(
        "logged_by_turns",
        "write f 0 a16k; write g 0 a16k; sync; write f 0 b4k; fsync f; write g 0 b4k; fsync g; write f 4k c4k; fsync f; write g 4k c4k; fsync g",
        &["f = b4k+c4k+a8k; g = b4k+c4k+a8k"],
    ),
    noted(
        "another_file_was_not_synced",
        "sync; write f 0 a8k; write g 0 b8k; fsync g",
        &["g = b8k; ?f = a8k | -"],
        "without an fsync of its own a new file may be missing, or be empty",
    ),
    noted(
        "nothing_was_synced",
        "write f 0 a8k; sync; write f 0 b8k; write g 0 b8k",
        &["f = a8k | b8k; ?g = b8k | -"],
        "no promise beyond the last sync",
    )
    .writes_nothing(),
    case("sparse", "sync; write f 1m a4k; fsync f", &["f = .1m+a4k"]),
    case(
        "hole_filled",
        "write f 0 a4k; write f 64k b4k; sync; write f 32k c4k; fsync f",
        &["f = a4k+.28k+c4k+.28k+b4k"],
    ),
    case(
        "inline_becomes_extent",
        "write f 0 a100; sync; write f 100 b8k; fsync f",
        &["f = a100+b8k"],
    ),
    case(
        "extent_becomes_inline",
        "write f 0 a8k; sync; truncate f 0; write f 0 b50; fsync f",
        &["f = b50"],
    ),
    case(
        "inline_overwritten",
        "write f 0 a100; sync; write f 50 b10; fsync f",
        &["f = a50+b10+a40"],
    ),
    case(
        "many_extents",
        "create f; sync; scatter f 400 64k a; fsync f",
        &["f = 399*(a4k+.60k)+a4k"],
    ),
    case(
        "many_extents_twice",
        "scatter f 400 64k a; sync; scatter f 400 64k b; fsync f; scatter f 200 128k c; fsync f",
        &["f = 199*(c4k+.60k+b4k+.60k)+c4k+.60k+b4k"],
    ),
    case(
        "compressed",
        "create f; setx f btrfs.compression zstd; sync; write f 0 a512k; fsync f; write f 64k b64k; fsync f",
        &["f = a64k+b64k+a384k; f x btrfs.compression=zstd"],
    ),
    case(
        "forgotten_and_changed_again",
        "sync; write f 0 a16k; fsync f; drop; write f 4k b4k; fsync f",
        &["f = a4k+b4k+a8k"],
    ),
    case(
        "forgotten_and_cut",
        "write f 0 a64k; sync; write f 0 b8k; fsync f; drop; truncate f 4k; fsync f",
        &["f = b4k"],
    ),
];
