//! What is known before anything has an address: inodes with their numbers, subvolumes, options.

use btrfs_format::TreeId;
use cowshed_source::{Body, Content, InodeId, Tree};

use super::number::{self, Numbered, Subvolume};
use super::options::BuildOptions;
use crate::{MkfsError, MkfsOptions, Settings, SettledSubvolume};

/// A size that no contents reach.
pub(super) const ENOUGH_BYTES: u64 = 1 << 60;

/// What is known before any address is.
pub(super) struct Plan<'t, 'b> {
    pub(super) tree: &'t Tree,
    pub(super) options: &'b BuildOptions<'b>,
    pub(super) subvolumes: Vec<Subvolume<'t>>,
    settled: Vec<SettledSubvolume>,
    default: TreeId,
}

impl<'t, 'b> Plan<'t, 'b> {
    pub(super) fn new(tree: &'t Tree, options: &'b BuildOptions<'b>) -> Result<Self, MkfsError> {
        let roots = number::roots(tree, &options.subvolumes)?;
        let (subvolumes, mut settled) = number::number(tree, &roots)?;
        let mut default = TreeId::FS;
        for (settled, asked) in settled.iter_mut().zip(&options.subvolumes) {
            settled.uuid = options.volume.derive_uuid(&format!("subvolume {}", settled.id));
            settled.read_only = asked.read_only;
            if asked.is_default {
                default = settled.id;
            }
        }
        Ok(Self {
            tree,
            options,
            subvolumes,
            settled,
            default,
        })
    }

    pub(super) fn is_packed(&self) -> bool {
        let mut inodes = self.subvolumes.iter().flat_map(|subvolume| &subvolume.inodes);
        inodes.any(|inode| self.options.policy.of(inode.id).packer.is_some())
    }

    /// The settings; sizes are not looked at, since chunks are made as the contents need them.
    pub(super) fn settings(&self, device_bytes: &[u64]) -> Result<Settings, MkfsError> {
        let names: Vec<String> = (0..device_bytes.len()).map(|n| n.to_string()).collect();
        let sizes: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), ENOUGH_BYTES)).collect();
        let options = MkfsOptions {
            byte_count: None,
            ..self.options.volume.clone()
        };
        let mut settings = options.settle(&sizes)?;
        let sectorsize = u64::from(settings.sectorsize_bytes);
        settings.device_bytes = device_bytes.iter().map(|bytes| bytes - bytes % sectorsize).collect();
        settings.subvolumes.clone_from(&self.settled);
        settings.default_subvolume = self.default;
        Ok(settings)
    }

    /// The contents of a regular file.
    pub(super) fn content(&self, id: InodeId) -> Option<&'t Content> {
        match &self.tree[id].body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    /// An error about an inode, by its path.
    pub(super) fn refuse(&self, subvolume: &Subvolume<'_>, inode: &Numbered<'_>, what: &'static str) -> MkfsError {
        MkfsError::Entry {
            path: number::path_of(&self.subvolumes, &self.settled, subvolume, inode),
            what,
        }
    }
}
