//! What an fsync carries along beside the inode that is synced.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    // The inode is gone: no directory that the log has may give it back.
    noted(
        "logged_link_elsewhere_goes_with_its_file",
        "mkdir y; create y/g; create y/a; sync; link y/a h; fsync y/a; unlink h; rename y/g y/a; fsync y",
        &["y/; y/a = -; !y/g; !h"],
        "the root directory came along with the link and is not synced again",
    ),
    case(
        "renamed_linked_logged_and_gone",
        "mkdir x; create x/a; sync; rename x/a x/h; chmod x/h 700; link x/h foo; fsync x/h; unlink x/h; unlink foo; fsync x",
        &["x/; !x/a; !x/h; !foo"],
    ),
    case(
        "link_of_a_logged_directory_moved_and_gone",
        "mkdir x; create x/c; sync; link x/c foo; fsync .; rename foo x/bar; unlink x/c; unlink x/bar; fsync x",
        &["x/; !x/c; !x/bar; !foo"],
    ),
    case(
        "name_taken_over_is_free_again",
        "mkdir x; mkdir y; create h; create x/h; link h y/a; sync; rename h x/h; fsync .; unlink x/h; rename y/a y/c; fsync y/c",
        &["x/; y/; y/c = -; !x/h; !h; !y/a"],
    )
    .commits(),
    noted(
        "moved_out_of_a_logged_directory_and_gone",
        "mkdir x; create x/g; create x/bar; sync; unlink x/g; fsync x; rename x/bar g; unlink g; fsync .",
        &["x/; !x/g; !x/bar; !g"],
        "the directory comes along for the name that it lost",
    ),
    case(
        "renamed_in_a_logged_directory_and_gone",
        "mkdir x; create x/c; create x/h; sync; create b; unlink x/c; fsync x; rename x/h x/c; unlink x/c; fsync b",
        &["b = -; x/; !x/c; !x/h"],
    ),
    // Files made without a name count as logged once they are synced.
    case(
        "synced_temporary_file_gets_a_name",
        "mkdir x; mkdir y; sync; create y/c; tmpfile @1 x; fsync @1; link @1 x/h; fsync y/c",
        &["x/; x/h = -; y/; y/c = -"],
    ),
    case(
        "synced_temporary_file_gets_a_name_directory_synced",
        "mkdir x; create x/b; sync; rename x/b x/g; tmpfile @1 .; fsync @1; link @1 bar; fsync x",
        &["x/; x/g = -; !x/b; bar = -"],
    ),
    case(
        "temporary_file_in_new_directories",
        "mkdir x; sync; mkdir x/z; mkdir x/z/z; tmpfile @1 x/z/z; fsync @1",
        &["x/; x/z/; x/z/z/"],
    ),
    // What the log has already is brought up to date.
    case(
        "logged_link_changed_directory_data_synced",
        "mkdir x; mkdir y; create y/b; sync; link y/b x/g; fsync y/b; setx x/g user.b hhh; fdatasync x",
        &["x/; x/g = -; y/; x/g == y/b; y/b x user.b=hhh"],
    ),
    case(
        "logged_new_directory_changed_parent_synced",
        "mkdir x; create x/a; create x/b; link x/b x/foo; sync; rename x/b x/bar; fsync x/foo; mkdir x/z; fsync x/bar; link x/a x/z/h; \
         fsync x",
        &["x/; x/a = -; x/bar == x/foo; !x/b; x/z/; x/z/h == x/a"],
    ),
    case(
        "new_directory_of_a_logged_file_renamed",
        "sync; mkdir d; write d/f 0 a4k; fsync d/f; rename d e; create g; fsync g",
        &["e/; e/f = a4k; g = -; !d/"],
    ),
    case(
        "times_synced_then_renamed_another_synced",
        "mkdir x; mkdir y; mkdir z; create y/b; link y/b x/g; sync; utime x/g 1000886; fdatasync x/g; rename y/b z/foo; create x/new; fsync x/new",
        &["x/; y/; z/; z/foo == x/g; !y/b; x/new = -"],
    ),
    // The directories of the names in the commit.
    case(
        "directory_of_a_committed_name",
        "mkdir x; mkdir y; create x/c; link x/c a; sync; write-dsync a 0 e4k; fsync .; unlink a; fsync y; mkdir d; rename x/c x/b; fsync x",
        &["!a; d/; x/; x/b = e4k; !x/c; y/"],
    ),
    case(
        "attribute_of_the_directory_that_was_left",
        "mkdir y; create y/g; sync; link y/g bar; rename y/g y/c; unlink y/c; fsync y; setx y user.a one; fsync bar",
        &["y/; y x user.a=one; bar = -; !y/g; !y/c"],
    ),
    case(
        "new_directory_above_a_moved_one",
        "mkdir x; mkdir y; sync; mkdir y/e; mkdir x/e; rename y x/e/e; fsync x/e/e/e",
        &["x/; x/e/; y/; y/e/", "x/; x/e/; x/e/e/; x/e/e/e/"],
    ),
];
