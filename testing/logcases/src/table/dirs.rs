//! Directories: new, synced, emptied, moved.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case("new_directory", "sync; mkdir d; fsync d", &["d/"]),
    case(
        "parents_of_a_new_file",
        "sync; mkdir a; mkdir a/b; mkdir a/b/c; write a/b/c/f 0 a8k; fsync a/b/c/f",
        &["a/; a/b/; a/b/c/; a/b/c/f = a8k"],
    ),
    case(
        "parents_of_a_new_directory",
        "sync; mkdir a; mkdir a/b; mkdir a/b/c; fsync a/b/c",
        &["a/; a/b/; a/b/c/"],
    ),
    noted(
        "new_file_beside_another",
        "mkdir d; sync; write d/f 0 a8k; write d/g 0 b8k; fsync d/f",
        &["d/; d/f = a8k; ?d/g = b8k | -"],
        "only what was asked for",
    ),
    noted(
        "new_names_and_directory_synced",
        "mkdir d; sync; write d/f 0 a8k; create d/g; fsync d",
        &["d/; d/f = a8k | -; d/g = -"],
        "names are durable, data of other files is not",
    ),
    case(
        "synced_files_and_directory_synced",
        "mkdir d; sync; write d/f 0 a8k; fsync d/f; write d/g 0 b8k; fsync d/g; fsync d",
        &["d/; d/f = a8k; d/g = b8k"],
    ),
    case(
        "removed_names_and_directory_synced",
        "mkdir d; write d/f 0 a8k; write d/g 0 b8k; sync; unlink d/f; fsync d",
        &["d/; !d/f; d/g = b8k"],
    ),
    case(
        "removed_and_made_and_directory_synced",
        "mkdir d; write d/f 0 a8k; write d/g 0 b8k; sync; unlink d/f; create d/h; fsync d",
        &["d/; d/g = b8k; d/h = -"],
    ),
    case(
        "removed_after_the_directory_was_logged",
        "mkdir d; write d/f 0 a8k; write d/g 0 b8k; sync; create d/h; fsync d; unlink d/f; fsync d",
        &["d/; d/g = b8k; d/h = -"],
    ),
    case(
        "removed_what_the_directory_had_logged",
        "mkdir d; sync; create d/h; create d/i; fsync d; unlink d/h; fsync d",
        &["d/; d/i = -"],
    ),
    case(
        "renamed_within_and_directory_synced",
        "mkdir d; write d/f 0 a8k; sync; rename d/f d/g; fsync d",
        &["d/; d/g = a8k; !d/f"],
    ),
    case(
        "many_names",
        "mkdir d; sync; many d/f 2000; fsync d",
        &["d/; d/f* count 2000"],
    ),
    case(
        "many_names_half_removed",
        "mkdir d; many d/f 2000; sync; unlink-every 2 d/f 2000; fsync d",
        &["d/; d/f* count 1000"],
    ),
    case(
        "many_names_all_removed",
        "mkdir d; many d/f 1500; sync; unlink-every 1 d/f 1500; fsync d",
        &["d/"],
    ),
    case(
        "many_names_in_two_logs",
        "mkdir d; many d/f 800; sync; many d/g 800; fsync d; unlink-every 4 d/g 800; unlink-every 4 d/f 800; many d/h 10; fsync d",
        &["d/; d/f* count 600; d/g* count 600; d/h* count 10"],
    ),
    case(
        "new_directories_below_a_synced_one",
        "mkdir d; sync; mkdir d/e; create d/e/f; fsync d",
        &["d/; d/e/; ?d/e/f = -"],
    ),
    case(
        "directory_removed",
        "mkdir p; mkdir p/d; sync; rmdir p/d; fsync p",
        &["p/; !p/d"],
    ),
    case(
        "directory_emptied_and_removed",
        "mkdir p; mkdir p/d; write p/d/f 0 a8k; write p/d/g 0 b8k; sync; unlink p/d/f; unlink p/d/g; rmdir p/d; fsync p",
        &["p/"],
    ),
    case(
        "logged_directory_removed",
        "mkdir p; sync; mkdir p/d; write p/d/f 0 a8k; fsync p/d/f; unlink p/d/f; rmdir p/d; fsync p",
        &["p/"],
    ),
    case(
        "directory_made_again",
        "mkdir d; write d/f 0 a8k; sync; unlink d/f; rmdir d; mkdir d; write d/g 0 b8k; fsync d/g",
        &["d/; d/g = b8k; !d/f"],
    ),
    case(
        "directory_made_again_and_synced",
        "mkdir d; write d/f 0 a8k; sync; unlink d/f; rmdir d; mkdir d; create d/g; fsync d",
        &["d/; d/g = -; !d/f"],
    ),
    case(
        "directory_made_again_same_names",
        "mkdir d; write d/f 0 a8k; sync; unlink d/f; rmdir d; mkdir d; write d/f 0 b4k; fsync d/f; fsync d",
        &["d/; d/f = b4k; d/f links 1"],
    ),
    case(
        "logged_directory_made_again",
        "sync; mkdir d; write d/f 0 a8k; fsync d/f; unlink d/f; rmdir d; mkdir d; write d/f 0 b4k; fsync d/f",
        &["d/; d/f = b4k; d/f links 1"],
    )
    .commits(),
    noted(
        "directory_renamed_child_synced",
        "mkdir d; write d/f 0 a8k; sync; rename d e; write e/f 8k b8k; fsync e/f",
        &["e/; e/f = a8k+b8k; !d", "d/; d/f = a8k+b8k; !e"],
        "the directory's own name was not synced",
    ),
    noted(
        "directory_renamed_new_child_synced",
        "mkdir d; write d/f 0 a8k; sync; rename d e; write e/g 0 b8k; fsync e/g",
        &["e/; e/f = a8k; e/g = b8k; !d", "d/; d/f = a8k; d/g = b8k; !e"],
        "the directory's own name was not synced",
    ),
    case(
        "directory_renamed_and_synced",
        "mkdir d; write d/f 0 a8k; sync; rename d e; fsync e",
        &["e/; e/f = a8k; !d"],
    )
    .commits(),
    noted(
        "directory_moved_and_child_synced",
        "mkdir p; mkdir q; mkdir p/d; write p/d/f 0 a8k; sync; rename p/d q/d; write q/d/g 0 b4k; fsync q/d/g",
        &[
            "p/; q/; q/d/; q/d/f = a8k; q/d/g = b4k",
            "p/; q/; p/d/; p/d/f = a8k; p/d/g = b4k",
        ],
        "the directory's own name was not synced",
    ),
    noted(
        "directory_moved_and_old_parent_synced",
        "mkdir p; mkdir q; mkdir p/d; write p/d/f 0 a8k; sync; rename p/d q/d; fsync p",
        &["p/; q/; q/d/; q/d/f = a8k", "p/; q/; p/d/; p/d/f = a8k"],
        "never lost, never twice",
    )
    .commits(),
    case(
        "directory_moved_and_new_parent_synced",
        "mkdir p; mkdir q; mkdir p/d; write p/d/f 0 a8k; sync; rename p/d q/d; fsync q",
        &["p/; q/; q/d/; q/d/f = a8k"],
    )
    .commits(),
    case(
        "new_directory_moved",
        "mkdir p; mkdir q; sync; mkdir p/d; write p/d/f 0 a8k; fsync p/d/f; rename p/d q/d; fsync q/d",
        &["p/; q/; q/d/; q/d/f = a8k"],
    ),
    case(
        "directories_change_places",
        "mkdir d; mkdir e; write d/f 0 a4k; write e/g 0 b4k; sync; exchange d e; fsync d",
        &["d/; e/; e/f = a4k; d/g = b4k"],
    )
    .commits(),
    case(
        "child_becomes_parent",
        "mkdir a; mkdir a/b; write a/b/f 0 a4k; sync; rename a/b b; rename a b/a; fsync b/a",
        &["b/; b/f = a4k; b/a/"],
    )
    .commits(),
    case(
        "rename_over_empty_directory",
        "mkdir a; mkdir b; write a/f 0 a8k; sync; rename a b; fsync b",
        &["b/; b/f = a8k; !a"],
    )
    .commits(),
    case(
        "file_moves_up_and_directory_goes",
        "mkdir d; write d/f 0 a8k; sync; rename d/f f; rmdir d; fsync f",
        &["f = a8k; !d"],
    )
    .commits(),
    noted(
        "file_moves_up_and_parent_synced",
        "mkdir p; mkdir p/d; write p/d/f 0 a8k; sync; rename p/d/f p/f; rmdir p/d; fsync p",
        &["p/; p/f = a8k"],
        "a directory that goes takes nothing along",
    )
    .commits(),
    case(
        "root_synced",
        "write f 0 a8k; sync; create g; unlink f; fsync .",
        &["g = -"],
    ),
    case(
        "directory_synced_then_more",
        "mkdir d; sync; create d/f; fsync d; create d/g; write d/h 0 b8k; fsync d/h",
        &["d/; d/f = -; d/h = b8k; ?d/g = -"],
    ),
    case(
        "removed_and_synced_then_made_again",
        "mkdir d; write d/f 0 a8k; sync; unlink d/f; fsync d; write d/f 0 b4k; fsync d/f",
        &["d/; d/f = b4k; d/f links 1"],
    ),
    case(
        "forgotten_directory_synced",
        "mkdir d; write d/f 0 a4k; sync; create d/g; fsync d; drop; unlink d/f; create d/h; fsync d",
        &["d/; d/g = -; d/h = -"],
    ),
    case(
        "deep_new_tree_of_files",
        "sync; mkdir a; mkdir a/b; write a/x 0 x4k; write a/b/y 0 y4k; fsync a/b/y; fsync a/x",
        &["a/; a/b/; a/x = x4k; a/b/y = y4k"],
    ),
];
