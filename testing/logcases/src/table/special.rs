//! What is no file and no directory, and volumes within the volume.

use super::{Case, case, noted};

pub(super) const CASES: &[Case] = &[
    case(
        "symlink_and_parent_synced",
        "mkdir d; sync; symlink target d/l; fsync d",
        &["d/; d/l -> target"],
    ),
    case(
        "symlink_in_new_directory",
        "sync; mkdir d; symlink target d/l; fsync d",
        &["d/; d/l -> target"],
    ),
    case(
        "symlink_replaced",
        "mkdir d; symlink old d/l; sync; symlink new d/t; rename d/t d/l; fsync d",
        &["d/; d/l -> new; !d/t"],
    ),
    noted(
        "symlink_beside_a_synced_file",
        "mkdir d; sync; symlink target d/l; write d/f 0 a4k; fsync d/f",
        &["d/; d/f = a4k; ?d/l -> target"],
        "a link is never there without its target",
    ),
    case(
        "special_files",
        "mkdir d; sync; fifo d/p; char d/c; socket d/s; fsync d",
        &["d/; d/p fifo; d/c char; d/s socket"],
    ),
    case(
        "special_file_removed",
        "mkdir d; fifo d/p; char d/c; sync; unlink d/p; fsync d",
        &["d/; !d/p; d/c char"],
    ),
    case(
        "special_file_linked",
        "mkdir d; fifo p; sync; link p d/q; fsync d",
        &["d/; p fifo; p == d/q; p links 2"],
    ),
    case(
        "file_in_subvolume",
        "subvolume s; write s/f 0 a8k; sync; write s/f 4k b4k; write s/g 0 c4k; fsync s/f",
        &["s/; s/f = a4k+b4k; ?s/g = c4k | -"],
    ),
    case(
        "new_file_in_subvolume",
        "subvolume s; mkdir s/d; sync; mkdir s/d/e; write s/d/e/f 0 a8k; fsync s/d/e/f",
        &["s/; s/d/; s/d/e/; s/d/e/f = a8k"],
    ),
    case(
        "logs_of_several_subvolumes",
        "subvolume s; subvolume t; write s/f 0 a8k; write t/f 0 a8k; write f 0 a8k; sync; write s/f 0 b4k; fsync s/f; write t/f 0 c4k; fsync t/f; write f 0 d4k; fsync f",
        &["s/; t/; s/f = b4k+a4k; t/f = c4k+a4k; f = d4k+a4k"],
    ),
    case(
        "same_inode_numbers_in_two_subvolumes",
        "subvolume s; subvolume t; sync; write s/f 0 a8k; write t/g 0 b8k; fsync s/f; fsync t/g",
        &["s/; t/; s/f = a8k; t/g = b8k"],
    ),
    case(
        "root_of_subvolume_synced",
        "subvolume s; write s/f 0 a8k; sync; unlink s/f; create s/g; fsync s",
        &["s/; !s/f; s/g = -"],
    ),
    case(
        "renamed_in_subvolume",
        "subvolume s; mkdir s/d; write s/f 0 a8k; sync; rename s/f s/d/g; fsync s/d/g",
        &["s/; s/d/; s/d/g = a8k; !s/f"],
    ),
    case(
        "new_subvolume",
        "mkdir d; sync; subvolume d/s; write d/s/f 0 a8k; fsync d/s/f",
        &["d/; d/s/; d/s/f = a8k"],
    ),
    case(
        "new_subvolume_and_parent_synced",
        "mkdir d; sync; subvolume d/s; fsync d",
        &["d/; d/s/"],
    ),
    case(
        "subvolume_renamed",
        "mkdir d; subvolume s; write s/f 0 a8k; sync; rename s d/t; write d/t/f 0 b8k; fsync d/t/f",
        &["d/; d/t/; d/t/f = b8k", "d/; s/; s/f = b8k"],
    ),
    case(
        "deleted_subvolume_and_parent_synced",
        "mkdir d; subvolume d/s; write d/s/f 0 a4k; sync; delete-subvolume d/s; fsync d",
        &["d/; !d/s"],
    ),
    noted(
        "deleted_subvolume_and_neighbour_synced",
        "mkdir d; subvolume d/s; write d/s/f 0 a4k; sync; delete-subvolume d/s; write d/g 0 b4k; fsync d/g",
        &["d/; d/g = b4k; !d/s", "d/; d/g = b4k; d/s/; d/s/f = a4k"],
        "whole or not at all",
    ),
    case(
        "name_of_deleted_subvolume_used_again",
        "mkdir d; subvolume d/s; write d/s/f 0 a4k; sync; delete-subvolume d/s; mkdir d/s; write d/s/g 0 b4k; fsync d/s/g",
        &["d/; d/s/; d/s/g = b4k"],
    ),
    case(
        "snapshot_of_what_was_synced",
        "subvolume s; sync; write s/f 0 a8k; fsync s/f; snapshot s t; write s/f 0 b4k; fsync s/f",
        &["s/; t/; s/f = b4k+a4k; t/f = a8k"],
    ),
    case(
        "snapshot_and_both_synced",
        "subvolume s; write s/f 0 a8k; snapshot s t; sync; write s/f 0 b4k; fsync s/f; write t/f 4k c4k; fsync t/f",
        &["s/; t/; s/f = b4k+a4k; t/f = a4k+c4k"],
    ),
    case(
        "file_removed_from_snapshot",
        "subvolume s; mkdir s/d; write s/d/f 0 a8k; snapshot s t; sync; unlink t/d/f; write t/d/g 0 b4k; fsync t/d",
        &["s/; t/; s/d/; t/d/; s/d/f = a8k; !t/d/f; ?t/d/g = b4k | -"],
    ),
];
