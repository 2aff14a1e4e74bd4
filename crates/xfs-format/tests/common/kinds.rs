//! Which test compares which kind of structure.

/// Those that a test compares.
pub fn of(test: &str) -> &'static [&'static str] {
    let found = KINDS.iter().find(|(name, _)| *name == test);
    found.unwrap_or_else(|| panic!("{test} is not in the list")).1
}

/// Kinds of structures, and the test that holds each field of it against `xfs_db` or
/// `xfs_logprint`.
pub const KINDS: &[(&str, &[&str])] = &[
    (
        "headers_and_trees_read_as_xfs_db_prints_them",
        &[
            "superblock",
            "AGF",
            "AGI",
            "AGFL",
            "bnobt",
            "cntbt",
            "inobt",
            "finobt",
            "rmapbt",
            "refcountbt",
        ],
    ),
    (
        "indexes_attributes_maps_and_symlinks_read_as_xfs_db_prints_them",
        &[
            "leaf",
            "leaf of several",
            "node",
            "free index",
            "attribute leaf",
            "attribute node",
            "remote value",
            "symlink",
            "map leaf",
            "map node",
        ],
    ),
    (
        "each_field_of_inodes_directories_and_attributes_is_the_one_of_xfs_db",
        &[
            "inode core",
            "shortform directory",
            "short symlink",
            "device",
            "extents of data",
            "root of the map",
            "no data",
            "shortform attributes",
            "extents of attributes",
            "block directory",
            "data block",
            "contents of an attribute leaf",
        ],
    ),
    ("each_field_of_dquots_is_the_one_of_xfs_db", &["dquot"]),
    (
        "each_field_of_log_items_is_the_one_of_xfs_logprint",
        &[
            "log record",
            "log operation",
            "transaction header",
            "BUF",
            "INODE",
            "ICREATE",
            "EFI",
            "EFD",
            "RUI",
            "RUD",
            "CUI",
            "CUD",
            "BUI",
            "BUD",
        ],
    ),
    (
        "each_field_of_attribute_intents_is_the_one_of_xfs_logprint",
        &["ATTRI", "ATTRD"],
    ),
    ("each_field_of_logged_dquots_is_the_one_of_xfs_logprint", &["DQUOT"]),
];
