//! Feature names as mkfs.btrfs takes them with `-O` and `-R`, and the bits they stand for.

use btrfs_format::ChecksumType;
use btrfs_format::features::{compat_ro, incompat};

use crate::error::{FEATURE_NAMES, MkfsError};

/// Which features a new volume has. The default is that of current mkfs.btrfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Data and metadata share block groups.
    pub mixed_bg: bool,
    /// Many links to one file from one directory.
    pub extref: bool,
    /// Small extent items for tree blocks.
    pub skinny_metadata: bool,
    /// Holes of files have no items.
    pub no_holes: bool,
    /// Free space is kept in a tree.
    pub free_space_tree: bool,
    /// `None`: on where `no_holes` and `free_space_tree` are, which it needs.
    pub block_group_tree: Option<bool>,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            mixed_bg: false,
            extref: true,
            skinny_metadata: true,
            no_holes: true,
            free_space_tree: true,
            block_group_tree: None,
        }
    }
}

impl Features {
    /// The names that [`Features::apply`] knows.
    pub const NAMES: [&'static str; 6] = FEATURE_NAMES;

    /// Applies a comma separated list of feature names, each turned off by a `^` before it.
    pub fn apply(&mut self, list: &str) -> Result<(), MkfsError> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            match word.strip_prefix('^') {
                Some(name) => self.set(name, false)?,
                None => self.set(word, true)?,
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, on: bool) -> Result<(), MkfsError> {
        let unsupported = match name {
            "mixed-bg" => return replace(&mut self.mixed_bg, on),
            "extref" => return replace(&mut self.extref, on),
            "skinny-metadata" => return replace(&mut self.skinny_metadata, on),
            "no-holes" => return replace(&mut self.no_holes, on),
            "free-space-tree" | "fst" => return replace(&mut self.free_space_tree, on),
            "block-group-tree" | "bgt" => return replace(&mut self.block_group_tree, Some(on)),
            // Follows from the profiles, whether it is asked for or not.
            "raid1c34" => return Ok(()),
            "quota" => "feature quota",
            "squota" => "feature squota",
            "raid56" => "feature raid56",
            "zoned" => "feature zoned",
            "raid-stripe-tree" | "rst" => "feature raid-stripe-tree",
            "extent-tree-v2" => "feature extent-tree-v2",
            _ => return Err(MkfsError::UnknownFeature { name: name.into() }),
        };
        if on {
            return Err(MkfsError::Unsupported { what: unsupported });
        }
        Ok(())
    }

    /// Whether the volume keeps its block groups in a tree of their own.
    pub fn has_block_group_tree(&self) -> bool {
        self.block_group_tree.unwrap_or(self.no_holes && self.free_space_tree)
    }

    /// Refuses what cannot be together.
    pub(crate) fn check(&self) -> Result<(), MkfsError> {
        if self.has_block_group_tree() && !(self.no_holes && self.free_space_tree) {
            return Err(MkfsError::BlockGroupTreeNeeds);
        }
        Ok(())
    }

    /// `incompat_flags`, without what follows from the profiles.
    pub(crate) fn incompat_bits(&self) -> u64 {
        bits(&[
            (true, incompat::MIXED_BACKREF),
            (self.mixed_bg, incompat::MIXED_GROUPS),
            (self.extref, incompat::EXTENDED_IREF),
            (self.skinny_metadata, incompat::SKINNY_METADATA),
            (self.no_holes, incompat::NO_HOLES),
        ])
    }

    /// `compat_ro_flags`.
    pub(crate) fn compat_ro_bits(&self) -> u64 {
        bits(&[
            (self.free_space_tree, compat_ro::FREE_SPACE_TREE),
            (self.free_space_tree, compat_ro::FREE_SPACE_TREE_VALID),
            (self.has_block_group_tree(), compat_ro::BLOCK_GROUP_TREE),
        ])
    }
}

fn replace<T>(place: &mut T, value: T) -> Result<(), MkfsError> {
    *place = value;
    Ok(())
}

fn bits(flags: &[(bool, u64)]) -> u64 {
    flags
        .iter()
        .filter(|(on, _)| *on)
        .fold(0, |bits, (_, flag)| bits | flag)
}

/// A checksum type by the name that mkfs.btrfs takes with `--csum`.
pub fn csum_type_from_name(name: &str) -> Result<ChecksumType, MkfsError> {
    match name.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(ChecksumType::Crc32c),
        "xxhash" | "xxhash64" => Ok(ChecksumType::Xxhash64),
        "sha256" => Ok(ChecksumType::Sha256),
        "blake2" | "blake2b" => Ok(ChecksumType::Blake2b),
        _ => Err(MkfsError::UnknownCsum { name: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_features_are_those_of_mkfs_btrfs() {
        let features = Features::default();
        assert_eq!(features.incompat_bits(), 0x341);
        assert_eq!(features.compat_ro_bits(), 0xb);
    }

    #[test]
    fn feature_list_turns_features_on_and_off() {
        let mut features = Features::default();
        features.apply("^no-holes,^skinny-metadata").unwrap();
        features.apply("^fst,mixed-bg,^quota,").unwrap();
        assert_eq!(features.incompat_bits(), 0x45);
        assert_eq!(
            features.compat_ro_bits(),
            0,
            "without what it needs, the block group tree goes"
        );
        features.check().unwrap();
        features.apply("bgt").unwrap();
        assert!(matches!(features.check(), Err(MkfsError::BlockGroupTreeNeeds)));
    }

    #[test]
    fn unsupported_feature_is_refused_by_name() {
        for name in [
            "quota",
            "squota",
            "raid56",
            "zoned",
            "rst",
            "raid-stripe-tree",
            "extent-tree-v2",
        ] {
            let error = Features::default().apply(name).unwrap_err();
            assert!(matches!(error, MkfsError::Unsupported { .. }), "{name}: {error}");
        }
        let error = Features::default().apply("^colour").unwrap_err();
        assert!(error.to_string().contains("'colour'"), "{error}");
        assert!(csum_type_from_name("md5").unwrap_err().to_string().contains("'md5'"));
    }
}
