//! Modes, owners, times, extended attributes.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case(
        "mode",
        "write f 0 a4k; sync; chmod f 600; fsync f",
        &["f = a4k; f mode 600"],
    ),
    case(
        "mode_of_directory",
        "mkdir d; sync; chmod d 700; fsync d",
        &["d/; d mode 700"],
    ),
    case(
        "owner",
        "write f 0 a4k; sync; chown f 1000; fsync f",
        &["f = a4k; f owner 1000"],
    ),
    case(
        "time",
        "write f 0 a4k; sync; utime f 1000000; fsync f",
        &["f = a4k; f mtime 1000000"],
    ),
    noted(
        "time_only_fdatasync",
        "write f 0 a4k; sync; utime f 1000000; fdatasync f",
        &["f = a4k"],
        "times are no data",
    )
    .writes_nothing(),
    case(
        "mode_after_log",
        "sync; write f 0 a4k; fsync f; chmod f 600; fsync f",
        &["f = a4k; f mode 600"],
    ),
    case(
        "xattr",
        "write f 0 a4k; sync; setx f user.a one; fsync f",
        &["f = a4k; f x user.a=one"],
    ),
    case(
        "xattr_of_new_file",
        "sync; write f 0 a4k; setx f user.a one; fsync f",
        &["f = a4k; f x user.a=one"],
    ),
    case(
        "xattr_replaced",
        "write f 0 a4k; setx f user.a one; sync; setx f user.a two; fsync f",
        &["f = a4k; f x user.a=two"],
    ),
    case(
        "xattr_removed",
        "write f 0 a4k; setx f user.a one; setx f user.b two; sync; rmx f user.a; fsync f",
        &["f = a4k; f !x user.a; f x user.b=two"],
    ),
    case(
        "xattr_removed_after_log",
        "write f 0 a4k; sync; setx f user.a one; setx f user.b two; fsync f; rmx f user.a; fsync f",
        &["f = a4k; f !x user.a; f x user.b=two"],
    ),
    case(
        "last_xattr_removed",
        "write f 0 a4k; setx f user.a one; sync; rmx f user.a; fsync f",
        &["f = a4k; f !x user.a"],
    ),
    case(
        "xattr_removed_and_forgotten",
        "write f 0 a4k; setx f user.a one; setx f user.b two; sync; rmx f user.b; fsync f; drop; write f 0 b4k; fsync f",
        &["f = b4k; f x user.a=one; f !x user.b"],
    ),
    case(
        "xattr_kept_when_data_is_logged",
        "write f 0 a4k; setx f user.a one; sync; write f 0 b4k; fsync f",
        &["f = b4k; f x user.a=one"],
    ),
    case(
        "xattr_of_directory",
        "mkdir d; create d/f; sync; setx d user.a one; fsync d",
        &["d/; d x user.a=one; d/f = -"],
    ),
    case(
        "xattr_removed_from_directory",
        "mkdir d; create d/f; setx d user.a one; setx d user.b two; sync; rmx d user.a; fsync d",
        &["d/; d !x user.a; d x user.b=two; d/f = -"],
    ),
    case(
        "large_xattr",
        "write f 0 a4k; sync; setx f user.a =x3000; fsync f",
        &["f = a4k; f x user.a==x3000"],
    ),
    noted(
        "xattr_without_fsync",
        "write f 0 a4k; setx f user.a one; sync; setx f user.a two; write g 0 b4k; fsync g",
        &["f = a4k; f x user.a=one; g = b4k", "f = a4k; f x user.a=two; g = b4k"],
        "one of its values, whole",
    ),
    case(
        "xattr_goes_with_the_replaced_file",
        "write f 0 a4k; setx f user.a one; sync; write t 0 b4k; setx t user.b two; fsync t; rename t f; fsync f",
        &["f = b4k; f !x user.a; f x user.b=two; !t"],
    ),
];
