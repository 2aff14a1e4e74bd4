//! What is gathered while the inodes of a group are read. The modules that read parts of an inode
//! add methods to it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use xfs_format::{AgNumber, Ino};

use crate::ag::Group;
use crate::entry::Entry;
use crate::finding::Sink;
use crate::ledger::{Gather, Ledger, Which};
use crate::table::Info;
use crate::usage::{Usage, quota_inodes};
use crate::volume::Volume;

/// What the inodes of a group add up to.
pub(crate) struct Scan<'a> {
    pub(crate) vol: &'a Volume,
    pub(crate) sink: Sink,
    pub(crate) claims: Gather<'a>,
    ledger: &'a Ledger,
    group: AgNumber,
    entries: Vec<Entry>,
    pub(crate) infos: Vec<Info>,
    /// Usage by type and id, where quotas are counted.
    pub(crate) usage: BTreeMap<(u8, u32), Usage>,
    pub(crate) counts_quota: bool,
    /// The inode in work.
    pub(crate) info: Info,
}

/// What is left of a scan when its claims and entries are in the ledger.
pub(crate) struct Found {
    pub(crate) sink: Sink,
    pub(crate) infos: Vec<Info>,
    pub(crate) usage: BTreeMap<(u8, u32), Usage>,
}

/// Entries that are gathered before the ledger gets them.
const ENTRIES: usize = 1 << 14;

/// The hash of a name in a directory.
pub(crate) fn mark(dir: Ino, generation: u32, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (dir.get(), generation, name).hash(&mut hasher);
    hasher.finish()
}

impl<'a> Scan<'a> {
    pub(crate) fn new(vol: &'a Volume, ledger: &'a Ledger, group: &Group, kept_per_id_max: u64) -> Self {
        Self {
            vol,
            sink: Sink::new(kept_per_id_max),
            claims: Gather::new(ledger, Which::Claims),
            ledger,
            group: group.number,
            entries: Vec::new(),
            infos: Vec::new(),
            usage: BTreeMap::new(),
            counts_quota: !quota_inodes(&vol.superblock).is_empty(),
            info: Info::NONE,
        }
    }

    /// Keeps an entry until links are counted.
    pub(crate) fn keep(&mut self, entry: Entry) {
        self.entries.push(entry);
        if self.entries.len() >= ENTRIES {
            self.ledger.add_entries(self.group, &mut self.entries);
        }
    }

    /// Hands all that was gathered to the ledger.
    pub(crate) fn finish(self) -> Found {
        let Self {
            sink,
            ledger,
            group,
            mut entries,
            infos,
            usage,
            ..
        } = self;
        ledger.add_entries(group, &mut entries);
        Found { sink, infos, usage }
    }

    pub(crate) fn is_quota(&self, ino: Ino) -> bool {
        self.counts_quota
            && quota_inodes(&self.vol.superblock)
                .iter()
                .any(|(quota, _)| *quota == ino)
    }
}
