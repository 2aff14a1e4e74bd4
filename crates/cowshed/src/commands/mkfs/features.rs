//! `-O list-all`: the features that volumes can be made with.

use btrfs_image::Features;

/// In a list of features: name them all, and make nothing.
pub const LIST_ALL: &str = "list-all";

/// What mkfs.btrfs says of a feature behind its name.
fn described(name: &str) -> &'static str {
    match name {
        "mixed-bg" => "mixed data and metadata block groups (compat=2.6.37, safe=2.6.37)",
        "extref" => "increased hardlink limit per file to 65536 (compat=3.7, safe=3.12, default=3.12)",
        "skinny-metadata" => "reduced-size metadata extent refs (compat=3.10, safe=3.18, default=3.18)",
        "no-holes" => "no explicit hole extents for files (compat=3.14, safe=4.0, default=5.15)",
        "free-space-tree" => {
            "free space tree, improved space tracking (space_cache=v2) (compat=4.5, safe=4.9, default=5.15)"
        }
        "block-group-tree" => "block group tree, more efficient block group tracking to reduce mount time (compat=6.1)",
        _ => "",
    }
}

/// Names the features, one a line.
pub fn list() {
    Features::NAMES.iter().for_each(crate::people::say);
}

/// Names the features in the words of mkfs.btrfs, which prints them as errors.
pub fn list_as_stock() {
    crate::people::warn("Filesystem features available:");
    for name in Features::NAMES {
        crate::people::warn(format_args!("{name:<20}- {}", described(name)));
    }
}

/// The features of a volume, as mkfs.btrfs orders them.
pub fn of(features: &Features) -> Vec<&'static str> {
    let is_on = |name: &&str| match *name {
        "mixed-bg" => features.mixed_bg,
        "extref" => features.extref,
        "skinny-metadata" => features.skinny_metadata,
        "no-holes" => features.no_holes,
        "free-space-tree" => features.free_space_tree,
        "block-group-tree" => features.has_block_group_tree(),
        _ => false,
    };
    Features::NAMES.into_iter().filter(is_on).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_a_description_and_can_be_on() {
        let mut all = Features::default();
        all.apply(&Features::NAMES.join(",")).unwrap();
        assert_eq!(of(&all), Features::NAMES);
        assert!(Features::NAMES.iter().all(|name| !described(name).is_empty()));
    }
}
