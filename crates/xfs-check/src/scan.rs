//! What is gathered while the inodes of a group are read. The modules that read parts of an inode
//! add methods to it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use xfs_format::Ino;

use crate::claims::Claim;
use crate::finding::Sink;
use crate::table::{Entry, Info};
use crate::usage::{Usage, quota_inodes};
use crate::volume::Volume;

/// What the inodes of a group add up to.
pub(crate) struct Scan<'a> {
    pub(crate) vol: &'a Volume,
    pub(crate) sink: Sink,
    pub(crate) claims: Vec<Claim>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) infos: Vec<Info>,
    /// Usage by type and id, where quotas are counted.
    pub(crate) usage: BTreeMap<(u8, u32), Usage>,
    pub(crate) counts_quota: bool,
    /// The inode in work.
    pub(crate) info: Info,
}

/// The hash of a name in a directory.
pub(crate) fn mark(dir: Ino, generation: u32, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (dir.get(), generation, name).hash(&mut hasher);
    hasher.finish()
}

impl<'a> Scan<'a> {
    pub(crate) fn new(vol: &'a Volume, kept_per_id_max: u64) -> Self {
        Self {
            vol,
            sink: Sink::new(kept_per_id_max),
            claims: Vec::new(),
            entries: Vec::new(),
            infos: Vec::new(),
            usage: BTreeMap::new(),
            counts_quota: !quota_inodes(&vol.superblock).is_empty(),
            info: Info::NONE,
        }
    }

    pub(crate) fn is_quota(&self, ino: Ino) -> bool {
        self.counts_quota
            && quota_inodes(&self.vol.superblock)
                .iter()
                .any(|(quota, _)| *quota == ino)
    }
}
