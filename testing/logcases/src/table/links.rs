//! Several names of one file, and none.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case(
        "link_and_fsync",
        "write f 0 a8k; sync; link f g; fsync f",
        &["f = a8k; f == g; f links 2"],
    ),
    case(
        "link_in_another_directory",
        "mkdir d; write f 0 a8k; sync; link f d/g; fsync d/g",
        &["d/; f = a8k; f == d/g; f links 2"],
    ),
    case(
        "link_and_fsync_its_directory",
        "mkdir d; write f 0 a8k; sync; link f d/g; fsync d",
        &["d/; f = a8k; f == d/g; f links 2"],
    ),
    case(
        "new_file_with_two_names",
        "mkdir d; sync; write f 0 a8k; link f d/g; fsync f",
        &["d/; f = a8k; f == d/g; f links 2"],
    ),
    case(
        "link_after_log",
        "mkdir d; sync; write f 0 a8k; fsync f; link f d/g; fsync f",
        &["d/; f = a8k; f == d/g; f links 2"],
    ),
    noted(
        "link_after_log_without_fsync",
        "mkdir d; sync; write f 0 a8k; fsync f; link f d/g",
        &["d/; f = a8k; f links 1; !d/g", "d/; f = a8k; f == d/g; f links 2"],
        "the link count fits the names",
    ),
    case(
        "links_of_two_files_and_fsync_of_one",
        "write foo 0 a8k; write bar 0 b8k; sync; link bar bar_link; link foo foo_link; fsync bar",
        &["foo = a8k; foo == foo_link; foo links 2; bar = b8k; bar == bar_link; bar links 2"],
    ),
    case(
        "link_of_logged_file_and_fsync_of_another",
        "create f; setx f user.a one; sync; write f 0 a8k; fsync f; rmx f user.a; link f f_link; create g; fsync g",
        &["f = a8k; f == f_link; f links 2; f !x user.a; g = -"],
    ),
    case(
        "link_beside_moves_into_the_directory",
        "mkdir x; mkdir y; mkdir y/z; write x/foo 0 a8k; write y/foo2 0 b8k; sync; link x/foo x/bar; rename y/z x/z; \
         rename y/foo2 x/foo2; fsync x/bar",
        &["x/; y/; x/foo = a8k; x/foo == x/bar; x/z/; x/foo2 = b8k; !y/z; !y/foo2"],
    )
    .commits(),
    case(
        "unlink_of_one_name_beside_a_new_file",
        "write f 0 a8k; link f g; sync; unlink g; create h; fsync f",
        &["f = a8k; !g; f links 1; h = -"],
    ),
    case(
        "unlink_of_one_name_of_logged_file_and_fsync_of_another",
        "write f 0 a8k; link f g; sync; write f 0 b8k; fsync f; unlink g; create h; fsync h",
        &["f = b8k; !g; f links 1; h = -"],
    ),
    case(
        "logged_file_changed_and_fsync_of_its_directory",
        "mkdir d; write d/f 0 a8k; sync; link d/f d/g; fsync d/f; setx d/f user.a one; create d/h; fsync d",
        &["d/; d/f = a8k; d/f == d/g; d/f x user.a=one; d/h = -"],
    )
    .linux_also(&["d/; d/f = a8k; d/f == d/g; d/h = -"]),
    case(
        "link_of_changed_file",
        "write f 0 a8k; sync; write f 0 b8k; link f g; fsync g",
        &["f = b8k; f == g; f links 2"],
    ),
    case(
        "unlink_one_of_two",
        "write f 0 a8k; link f g; sync; unlink g; fsync f",
        &["f = a8k; !g; f links 1"],
    ),
    case(
        "unlink_one_of_two_and_fsync_directory",
        "mkdir d; write f 0 a8k; link f d/g; sync; unlink d/g; fsync d",
        &["d/; f = a8k; !d/g; f links 1"],
    ),
    case(
        "unlink_one_of_two_after_log",
        "mkdir d; write f 0 a8k; link f d/g; sync; write f 0 b8k; fsync f; unlink d/g; fsync f",
        &["d/; f = b8k; !d/g; f links 1"],
    ),
    case(
        "unlink_one_of_two_then_change",
        "write f 0 a8k; link f g; sync; unlink f; write g 8k b8k; fsync g",
        &["g = a8k+b8k; !f; g links 1"],
    ),
    case(
        "link_replaces_name",
        "write f 0 a8k; sync; link f g; unlink f; fsync g",
        &["g = a8k; !f; g links 1"],
    ),
    case(
        "name_goes_to_link_of_another_file",
        "write f 0 a8k; write h 0 b8k; link f g; sync; unlink g; link h g; fsync h",
        &["f = a8k; f links 1; h = b8k; h == g; h links 2"],
    ),
    case(
        "name_goes_to_link_and_the_loser_is_synced",
        "write f 0 a8k; write h 0 b8k; link f g; sync; unlink g; link h g; fsync f; fsync h",
        &["f = a8k; f links 1; h = b8k; h == g; h links 2"],
    ),
    case(
        "link_takes_the_name_of_a_renamed_file",
        "write f 0 a8k; write g 0 b8k; sync; rename g h; link f g; fsync f",
        &["f = a8k; f == g; f links 2; h = b8k; h links 1"],
    ),
    case(
        "rename_over_a_link",
        "write f 0 a8k; link f g; write t 0 b8k; sync; rename t g; fsync g",
        &["f = a8k; f links 1; g = b8k; g links 1; !t"],
    ),
    case(
        "rename_one_of_two_names",
        "mkdir d; write f 0 a8k; link f d/g; sync; rename d/g d/h; fsync f",
        &["d/; f = a8k; f == d/h; !d/g; f links 2"],
    ),
    case(
        "link_and_rename_original",
        "write f 0 a8k; sync; link f g; rename f h; fsync h",
        &["h = a8k; h == g; !f; h links 2"],
    ),
    case(
        "many_links",
        "mkdir d; write f 0 a4k; sync; manylinks f d/l 300; fsync f",
        &["d/; f = a4k; f links 301; d/l* count 300"],
    )
    .commits_in_small_leaves(),
    case(
        "many_links_some_removed",
        "mkdir d; write f 0 a4k; manylinks f d/l 300; sync; unlink-every 3 d/l 300; fsync f",
        &["d/; f = a4k; f links 201; d/l* count 200"],
    )
    .commits_in_small_leaves(),
    case(
        "many_links_removed_and_directory_synced",
        "mkdir d; write f 0 a4k; manylinks f d/l 300; sync; unlink-every 2 d/l 300; fsync d",
        &["d/; f = a4k; f links 151; d/l* count 150"],
    )
    .commits_in_small_leaves(),
    case(
        "temporary_file_linked",
        "sync; tmpfile @1 .; write @1 0 a8k; link @1 f; fsync @1",
        &["f = a8k; f links 1"],
    ),
    noted(
        "temporary_file_synced_then_linked",
        "sync; tmpfile @1 .; write @1 0 a8k; fsync @1; link @1 f",
        &["?f = a8k"],
        "the link was not synced",
    )
    .writes_nothing(),
    case(
        "temporary_file_synced_linked_synced",
        "mkdir d; sync; tmpfile @1 .; write @1 0 a8k; fsync @1; link @1 d/f; fsync @1",
        &["d/; d/f = a8k; d/f links 1"],
    ),
    case(
        "temporary_file_linked_and_directory_synced",
        "mkdir d; sync; tmpfile @1 d; write @1 0 a8k; fsync @1; link @1 d/f; fsync d",
        &["d/; d/f = a8k; d/f links 1"],
    ),
    case(
        "temporary_file_never_linked",
        "sync; tmpfile @1 .; write @1 0 a8k; fsync @1",
        &[""],
    )
    .writes_nothing(),
    noted(
        "unlinked_open_file",
        "write f 0 a8k; sync; open @1 f; unlink f; fsync @1",
        &["!f"],
        "an fsync of a file without a name makes its removal durable",
    )
    .commits(),
    case(
        "unlinked_open_file_changed",
        "write f 0 a8k; sync; open @1 f; unlink f; write @1 0 b16k; fsync @1",
        &["!f"],
    )
    .commits(),
    noted(
        "logged_open_file_unlinked",
        "sync; write f 0 a8k; fsync f; open @1 f; unlink f; write @1 0 b8k; fsync @1",
        &["!f"],
        "the log must not bring it back",
    ),
    noted(
        "logged_file_unlinked",
        "sync; write f 0 a8k; fsync f; unlink f",
        &["?f = a8k"],
        "an unlink alone promises nothing",
    ),
    case(
        "logged_file_unlinked_another_synced",
        "mkdir d; sync; write d/f 0 a8k; fsync d/f; unlink d/f; write d/g 0 b8k; fsync d/g",
        &["d/; d/g = b8k; ?d/f = a8k"],
    ),
    case(
        "logged_file_unlinked_and_directory_synced",
        "mkdir d; sync; write d/f 0 a8k; fsync d/f; unlink d/f; fsync d",
        &["d/; !d/f"],
    ),
    case(
        "unlinked_name_linked_back",
        "write f 0 a8k; sync; open @1 f; link f g; unlink f; fsync @1; link g f; unlink g; fsync @1",
        &["f = a8k; !g; f links 1"],
    ),
];
