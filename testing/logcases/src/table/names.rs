//! Renames, and names that lead to something else than before.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case(
        "rename_new_file",
        "sync; write a 0 a8k; rename a b; fsync b",
        &["b = a8k; !a"],
    ),
    case(
        "rename_and_fsync",
        "write a 0 a8k; sync; rename a b; fsync b",
        &["b = a8k; !a; b links 1"],
    ),
    case(
        "rename_of_logged_new_file",
        "sync; write a 0 a8k; fsync a; rename a b; fsync b",
        &["b = a8k; !a; b links 1"],
    ),
    noted(
        "rename_without_fsync",
        "write a 0 a8k; sync; write g 0 c4k; rename a b; fsync g",
        &["one a b; ?a = a8k; ?b = a8k; g = c4k"],
        "whole or not at all",
    ),
    noted(
        "rename_of_logged_file_without_fsync",
        "sync; write a 0 a8k; fsync a; rename a b",
        &["one a b; ?a = a8k; ?b = a8k"],
        "whole or not at all",
    ),
    case(
        "rename_of_logged_file_and_fsync_of_another",
        "sync; write a 0 a8k; fsync a; rename a b; create g; fsync g",
        &["b = a8k; !a; g = -"],
    ),
    case(
        "rename_and_fsync_beside_a_new_file",
        "write a 0 a8k; sync; rename a b; create g; fsync b",
        &["b = a8k; !a; g = -"],
    ),
    case(
        "rename_twice",
        "write a 0 a8k; sync; rename a b; fsync b; rename b c; fsync c",
        &["c = a8k; !a; !b"],
    ),
    case(
        "rename_there_and_back",
        "write a 0 a8k; sync; rename a b; fsync b; rename b a; fsync a",
        &["a = a8k; !b"],
    ),
    noted(
        "replace",
        "write f 0 a8k; sync; write t 0 b8k; fsync t; rename t f",
        &["f = a8k; t = b8k", "f = b8k; !t"],
        "the atomic replace: the old content or the new one",
    ),
    case(
        "replace_and_fsync_file",
        "write f 0 a8k; sync; write t 0 b8k; fsync t; rename t f; fsync f",
        &["f = b8k; !t; f links 1"],
    ),
    case(
        "replace_and_fsync_dir",
        "mkdir d; write d/f 0 a8k; sync; write d/t 0 b8k; fsync d/t; rename d/t d/f; fsync d",
        &["d/; d/f = b8k; !d/t; d/f links 1"],
    ),
    noted(
        "replace_without_fsync_of_data",
        "write f 0 a8k; sync; write g 0 c4k; write t 0 b8k; rename t f; fsync g",
        &["f = a8k; ?t = b8k | -; g = c4k", "f = b8k | -; !t; g = c4k"],
        "a replacement without fsync of the data may leave the file empty",
    ),
    noted(
        "replace_and_fsync_dir_only",
        "mkdir d; write d/f 0 a8k; sync; write d/t 0 b8k; rename d/t d/f; fsync d",
        &["d/; d/f = b8k | -; !d/t"],
        "the name is durable, the data was never asked for",
    ),
    case(
        "replace_twice",
        "write f 0 a8k; sync; write t 0 b8k; fsync t; rename t f; write t 0 c8k; fsync t; rename t f; fsync f",
        &["f = c8k; !t; f links 1"],
    )
    .commits(),
    case(
        "replace_again_and_another_synced",
        "mkdir d; write d/f 0 a8k; sync; write d/t 0 b8k; fsync d/t; rename d/t d/f; fsync d; write d/t 0 c8k; fsync d/t; rename d/t d/f; write g 0 x4k; fsync g",
        &["d/; d/f = b8k; d/t = c8k; g = x4k", "d/; d/f = c8k; g = x4k"],
    )
    .commits(),
    case(
        "replace_again_and_neighbour_synced",
        "mkdir d; write d/f 0 a8k; create d/j; sync; write d/t 0 b8k; fsync d/t; rename d/t d/f; fsync d; write d/t 0 c8k; fsync d/t; rename d/t d/f; write d/j 0 x4k; fdatasync d/j",
        &["d/; d/f = b8k; d/t = c8k; d/j = x4k", "d/; d/f = c8k; d/j = x4k"],
    )
    .commits(),
    case(
        "replace_again_and_new_neighbour_synced",
        "mkdir d; write d/f 0 a8k; sync; write d/t 0 b8k; fsync d/t; rename d/t d/f; fsync d; write d/t 0 c8k; fsync d/t; rename d/t d/f; write d/n 0 x4k; fsync d/n",
        &["d/; d/f = b8k; d/t = c8k; d/n = x4k", "d/; d/f = c8k; d/n = x4k"],
    )
    .commits(),
    case(
        "replace_again_with_unsynced",
        "mkdir d; write d/f 0 a8k; sync; write d/t 0 b8k; fsync d/t; rename d/t d/f; fsync d; create d/t; rename d/t d/f; write g 0 x4k; fsync g",
        &["d/; d/f = b8k; ?d/t = -; g = x4k", "d/; d/f = -; g = x4k"],
    )
    .commits(),
    case(
        "replace_old_synced_file",
        "write f 0 a8k; write t 0 b8k; sync; rename t f; fsync f",
        &["f = b8k; !t; f links 1"],
    ),
    case(
        "replace_across_directories",
        "mkdir d; mkdir e; write e/f 0 a8k; sync; write d/t 0 b8k; fsync d/t; rename d/t e/f; fsync e/f",
        &["d/; e/; e/f = b8k; !d/t"],
    ),
    case(
        "whiteout",
        "write a 0 a8k; sync; whiteout a b; fsync b",
        &["b = a8k; a whiteout; b links 1"],
    ),
    case(
        "whiteout_and_directory_synced",
        "mkdir d; write d/a 0 a8k; sync; whiteout d/a d/b; fsync d",
        &["d/; d/b = a8k; d/a whiteout"],
    ),
    case(
        "whiteout_over_another_file",
        "mkdir d; write d/a 0 a8k; write d/b 0 b8k; sync; whiteout d/a d/b; fsync d/b; fsync d",
        &["d/; d/b = a8k; d/a whiteout; d/b links 1"],
    ),
    case(
        "exchange",
        "write a 0 a8k; write b 0 b8k; sync; exchange a b; fsync a",
        &["a = b8k; b = a8k; a links 1; b links 1"],
    ),
    case(
        "exchange_without_fsync",
        "write a 0 a8k; write b 0 b8k; sync; write g 0 c4k; exchange a b; fsync g",
        &["a = a8k; b = b8k; g = c4k", "a = b8k; b = a8k; g = c4k"],
    ),
    case(
        "exchange_across_directories",
        "mkdir d; mkdir e; write d/a 0 a8k; write e/b 0 b8k; sync; exchange d/a e/b; fsync d/a; fsync e/b",
        &["d/; e/; d/a = b8k; e/b = a8k"],
    ),
    case(
        "exchange_new_with_old",
        "mkdir d; write d/a 0 a8k; sync; write b 0 b8k; fsync b; exchange d/a b; fsync b",
        &["d/; d/a = b8k; b = a8k"],
    ),
    case(
        "exchange_file_with_directory",
        "mkdir d; write d/x 0 x4k; write f 0 a8k; sync; exchange d f; fsync d",
        &["d = a8k; f/; f/x = x4k"],
    )
    .commits(),
    case(
        "swap_by_three_renames",
        "write a 0 a8k; write b 0 b8k; sync; rename a t; rename b a; rename t b; fsync a",
        &["a = b8k; b = a8k; !t", "a = b8k; t = a8k; !b"],
    ),
    case(
        "swap_of_logged_names",
        "write a 0 a8k; write b 0 b8k; sync; write a 0 c8k; fsync a; rename a t; rename b a; rename t b; fsync b",
        &["a = b8k; b = c8k; !t"],
    ),
    case(
        "name_used_again",
        "write f 0 a8k; sync; unlink f; write f 0 b4k; fsync f",
        &["f = b4k; f links 1"],
    ),
    case(
        "name_used_again_after_log",
        "sync; write f 0 a8k; fsync f; unlink f; write f 0 b4k; fsync f",
        &["f = b4k; f links 1"],
    )
    .commits(),
    case(
        "name_of_renamed_file_used_again",
        "write f 0 a8k; sync; rename f g; write f 0 b4k; fsync f",
        &["f = b4k; g = a8k; f links 1; g links 1"],
    ),
    case(
        "name_of_moved_file_used_again",
        "mkdir d; mkdir e; write d/f 0 a8k; sync; rename d/f e/f; write d/f 0 b4k; fsync d/f",
        &["d/; e/; d/f = b4k; e/f = a8k"],
    )
    .commits(),
    case(
        "chain_of_names",
        "write a 0 a4k; write b 0 b4k; write c 0 c4k; sync; rename c d; rename b c; rename a b; write a 0 x4k; fsync a",
        &["a = x4k; b = a4k; c = b4k; d = c4k"],
    ),
    case(
        "name_of_renamed_directory_used_by_file",
        "mkdir d; write d/x 0 a4k; sync; rename d e; write d 0 b4k; fsync d",
        &["d = b4k; e/; e/x = a4k"],
    )
    .commits(),
    case(
        "name_of_renamed_directory_used_by_directory",
        "mkdir d; write d/x 0 a4k; sync; rename d e; mkdir d; write d/y 0 b4k; fsync d/y",
        &["d/; d/y = b4k; e/; e/x = a4k"],
    )
    .commits(),
    noted(
        "move_and_fsync_old_directory",
        "mkdir d; mkdir e; write d/f 0 a8k; sync; rename d/f e/f; fsync d",
        &["d/; e/; one d/f e/f; ?d/f = a8k; ?e/f = a8k"],
        "never lost",
    ),
    case(
        "move_and_fsync_new_directory",
        "mkdir d; mkdir e; write d/f 0 a8k; sync; rename d/f e/f; fsync e",
        &["d/; e/; e/f = a8k; !d/f; e/f links 1"],
    )
    .commits()
    .linux_also(&["d/; e/; e/f = a8k; d/f == e/f; e/f links 2"]),
    case(
        "move_and_fsync_file",
        "mkdir d; mkdir e; write d/f 0 a8k; sync; rename d/f e/f; fsync e/f",
        &["d/; e/; e/f = a8k; !d/f; e/f links 1"],
    ),
    case(
        "move_logged_new_file",
        "mkdir d; mkdir e; sync; write d/f 0 a8k; fsync d/f; rename d/f e/f; fsync e/f",
        &["d/; e/; e/f = a8k; !d/f; e/f links 1"],
    ),
    case(
        "move_logged_new_file_and_fsync_old_directory",
        "mkdir d; mkdir e; sync; write d/f 0 a8k; fsync d/f; rename d/f e/f; fsync d",
        &["d/; e/; one d/f e/f; ?d/f = a8k; ?e/f = a8k"],
    ),
    case(
        "move_logged_new_file_and_fsync_another_in_old_directory",
        "mkdir d; mkdir e; sync; write d/f 0 a8k; fsync d/f; rename d/f e/f; write d/g 0 b8k; fsync d/g",
        &["d/; e/; one d/f e/f; ?d/f = a8k; ?e/f = a8k; d/g = b8k"],
    ),
    case(
        "move_two_files_crosswise",
        "mkdir d; mkdir e; write d/a 0 a4k; write e/b 0 b4k; sync; rename d/a e/a; rename e/b d/b; fsync d; fsync e",
        &["d/; e/; e/a = a4k; d/b = b4k"],
    )
    .commits(),
    case(
        "changed_and_moved",
        "mkdir d; mkdir e; write d/f 0 a8k; sync; write d/f 4k b4k; rename d/f e/g; fsync e/g",
        &["d/; e/; e/g = a4k+b4k; !d/f"],
    ),
];
