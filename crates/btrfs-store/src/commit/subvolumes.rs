//! Making the trees of snapshots, and changing root items of subvolumes.
//!
//! A snapshot is a copy of its source's root block; everything below is shared. It is made after
//! the pending items of all trees have been merged, so it has what the source has in this commit,
//! in all files at once. From now on the source's blocks may be shared: its root item says so
//! (`last_snapshot`), and replacing them follows docs/design/references.md.

use btrfs_format::features::root_flags;
use btrfs_format::items::{RootItem, Timespec};
use btrfs_format::{DiskKey, Key, KeyType, ObjectId, TreeId, Uuid};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

use super::{Committer, roots};
use crate::error::Result;
use crate::jobs::{Job, NewSnapshot, RootChange};
use crate::refs::RefName;
use crate::store::Store;
use crate::tree::{MergeOutcome, Merger, RootPtr, Tree};
use crate::txn::Join;

impl Store {
    /// Has the commit of the joined transaction do this.
    pub fn add_job(&self, join: &Join<'_>, job: Job) {
        // The join keeps the transaction from ending before it has the job.
        let _ = join;
        self.jobs().add(job);
    }
}

impl Committer<'_> {
    /// Does the jobs of the transaction. All pending items have been merged, and no subvolume's
    /// tree is merged after this.
    pub(super) fn run_jobs(&mut self, jobs: Vec<Job>) -> Result<()> {
        for job in jobs {
            match job {
                Job::Snapshot(new) => self.make_snapshot(&new)?,
                // The root block has its place by now.
                Job::HoldSpace(space) => drop(space),
                Job::ChangeRoot(id, change) => self.change_root(id, change)?,
                Job::SetLabel(label) => self.label = Some(label),
            }
        }
        Ok(())
    }

    fn make_snapshot(&mut self, new: &NewSnapshot) -> Result<()> {
        let nodes = self.store.nodes().clone();
        let root = self.store.forest().require(new.source)?.root();
        let mut item = self.note_snapshot(new.source)?;
        // As if the snapshot had the source's root for its own, and replaced it now.
        let name = RefName::TreeBlock { root: new.id };
        self.queue
            .add(root.addr, self.format.nodesize_bytes, Some(root.level), name, 1);
        self.last_snapshot.insert(new.id, self.transid);
        let made = Merger::new(&nodes, self, new.id).copy_root(root)?;
        // What it takes is the source's size.
        self.blocks_delta.remove(&new.id);
        let root = self.publish_new(new.id, made);
        let now = self.store.env().now();
        let now = Timespec {
            sec: U64::new(now.secs.cast_unsigned()),
            nsec: U32::new(now.nanos),
        };
        item.bytenr = root.addr.into();
        item.level = root.level;
        item.generation = self.transid.into();
        item.generation_v2 = self.transid.into();
        // Its source may have been deleted in this very transaction.
        let not_its_own = root_flags::SUBVOL_RDONLY | root_flags::SUBVOL_DEAD;
        item.set_subvolume_flags(item.subvolume_flags() & !not_its_own);
        item.refs = U32::new(0);
        item.drop_progress = DiskKey::from(Key::MIN);
        item.drop_level = 0;
        item.uuid = new.uuid;
        item.otransid = self.transid.into();
        item.otime = now;
        let key = Key::new(new.id.object_id(), KeyType::ROOT_ITEM, self.transid.get());
        let orphan = Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, new.id.get());
        let edits = vec![
            (key, Some(roots::root_item_bytes(&item))),
            (orphan, Some([].as_slice().into())),
        ];
        self.merge_edits(TreeId::ROOT, edits)
    }

    /// The blocks of a new tree can be read from now on.
    fn publish_new(&mut self, id: TreeId, made: MergeOutcome) -> RootPtr {
        let tree = Tree::new(id, self.store.nodes().clone(), made.root);
        for (addr, block) in &made.blocks {
            self.dirty.insert(*addr, block.clone());
        }
        let root = made.root;
        tree.publish(made, false);
        self.store.forest().insert(tree.into());
        root
    }

    /// From now on the blocks of a subvolume may be shared. Returns what its snapshot's root item
    /// begins with.
    fn note_snapshot(&mut self, source: TreeId) -> Result<RootItem> {
        let root_tree = self.store.forest().root_tree().clone();
        let (key, mut item) = roots::load_root_item(&root_tree, source)?;
        item.last_snapshot = self.transid.into();
        self.last_snapshot.insert(source, self.transid);
        self.merge_edits(TreeId::ROOT, vec![(key, Some(roots::root_item_bytes(&item)))])?;
        // Its size as of this commit, which its root item learns of later.
        let delta = self.blocks_delta.get(&source).copied().unwrap_or(0);
        let delta_bytes = delta.saturating_mul(self.format.nodesize_bytes.cast_signed());
        item.bytes_used = U64::new(item.bytes_used.get().saturating_add_signed(delta_bytes));
        if self.touched.contains(&source) {
            roots::touch_subvolume(&mut item, self.transid, self.store.env().now());
        }
        item.parent_uuid = item.uuid;
        Ok(item)
    }

    fn change_root(&mut self, id: TreeId, change: RootChange) -> Result<()> {
        let root_tree = self.store.forest().root_tree().clone();
        let (key, mut item) = roots::load_root_item(&root_tree, id)?;
        let flags = item.subvolume_flags();
        match change {
            RootChange::Named { is_read_only } => {
                item.refs = U32::new(1);
                if is_read_only {
                    item.set_subvolume_flags(flags | root_flags::SUBVOL_RDONLY);
                } else {
                    // It is not what was received any more.
                    item.received_uuid = Uuid::default();
                    (item.stransid, item.rtransid) = (U64::ZERO, U64::ZERO);
                    (item.stime, item.rtime) = (Timespec::new_zeroed(), Timespec::new_zeroed());
                }
            }
            RootChange::Dead => {
                item.refs = U32::new(0);
                item.drop_progress = DiskKey::from(Key::MIN);
                item.drop_level = 0;
                item.set_subvolume_flags(flags | root_flags::SUBVOL_DEAD);
            }
            RootChange::Received(received) => {
                item.received_uuid = received.uuid;
                item.stransid = received.sent_generation.into();
                item.rtransid = self.transid.into();
                item.stime = received.sent;
                item.rtime = received.received;
            }
            RootChange::ReadOnly(true) => item.set_subvolume_flags(flags | root_flags::SUBVOL_RDONLY),
            RootChange::ReadOnly(false) => {
                item.set_subvolume_flags(flags & !root_flags::SUBVOL_RDONLY);
            }
        }
        self.merge_edits(TreeId::ROOT, vec![(key, Some(roots::root_item_bytes(&item)))])
    }
}
