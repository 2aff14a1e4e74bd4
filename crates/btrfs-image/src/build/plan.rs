//! What is known before anything has an address: inodes with their numbers, subvolumes, options.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use btrfs_format::{ObjectId, TreeId, Uuid};
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
    shares: Shares,
}

/// Which files have the extents of another one. Inodes are meant by their places in the list of
/// all.
#[derive(Default)]
struct Shares {
    leaders: HashMap<usize, usize>,
    followers: HashMap<usize, Vec<(TreeId, ObjectId)>>,
}

impl<'t, 'b> Plan<'t, 'b> {
    pub(super) fn new(tree: &'t Tree, options: &'b BuildOptions<'b>) -> Result<Self, MkfsError> {
        let roots = number::roots(tree, &options.subvolumes)?;
        let (subvolumes, mut settled) = number::number(tree, &roots)?;
        let mut default = TreeId::FS;
        let uuids: Vec<_> = settled
            .iter()
            .map(|settled| subvolume_uuid(options, settled.id))
            .collect();
        for (index, (settled, asked)) in settled.iter_mut().zip(&options.subvolumes).enumerate() {
            settled.uuid = uuids[index];
            // The top level is the first of the roots.
            settled.parent_uuid = match roots[index + 1].snapshot_of {
                None => {
                    let earlier = options.subvolumes[..index].iter();
                    let parent = asked.later_state_of.as_ref();
                    let place =
                        parent.and_then(|path| earlier.map(|known| &known.path).position(|known| known == path));
                    place.map_or([0; 16], |place| uuids[place])
                }
                Some(0) => options.volume.derive_uuid("fs tree"),
                Some(place) => uuids[place - 1],
            };
            settled.read_only = asked.read_only;
            if asked.is_default {
                default = settled.id;
            }
        }
        let shares = Shares::find(tree, options, &subvolumes);
        Ok(Self {
            tree,
            options,
            subvolumes,
            settled,
            default,
            shares,
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

    /// The place of the inode whose data is that of the one at `place`: mostly its own.
    pub(super) fn leader(&self, place: usize) -> usize {
        self.shares.leaders.get(&place).copied().unwrap_or(place)
    }

    /// Further inodes that have the data of the one at `place`.
    pub(super) fn followers(&self, place: usize) -> &[(TreeId, ObjectId)] {
        self.shares.followers.get(&place).map_or(&[], Vec::as_slice)
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

impl Shares {
    /// The first file with certain contents leads.
    fn find(tree: &Tree, options: &BuildOptions<'_>, subvolumes: &[Subvolume<'_>]) -> Self {
        let mut shares = Self::default();
        // Without snapshots and twins, files that share are names of one inode in two subvolumes.
        if subvolumes.len() == 1 && options.twins.is_empty() {
            return shares;
        }
        let mut first: HashMap<InodeId, usize> = HashMap::new();
        for subvolume in subvolumes {
            for (index, inode) in subvolume.inodes.iter().enumerate() {
                if !matches!(tree[inode.id].body, Body::File(_)) {
                    continue;
                }
                let place = subvolume.base + index;
                let contents = options.twins.get(&inode.id).copied().unwrap_or(inode.id);
                match first.entry(contents) {
                    Entry::Vacant(entry) => drop(entry.insert(place)),
                    Entry::Occupied(leader) => {
                        shares.leaders.insert(place, *leader.get());
                        let own = (subvolume.id, number::inode_number(index));
                        shares.followers.entry(*leader.get()).or_default().push(own);
                    }
                }
            }
        }
        shares
    }
}

fn subvolume_uuid(options: &BuildOptions<'_>, id: TreeId) -> Uuid {
    options.volume.derive_uuid(&format!("subvolume {id}"))
}
