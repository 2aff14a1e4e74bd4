//! Subvolumes as the contract has them.

use btrfs_format::features::root_flags;
use btrfs_format::items::Timespec;
use btrfs_format::{ObjectId, TreeId};
use cowshed_vfs::{Context, NodeId, SubvolumeInfo, Timestamp};

use super::Fs;
use crate::access::Caller;
use crate::dir::subvolumes::{self, Listed};
use crate::error::{Error, Result, StoreError};
use crate::{dir, file, subvol};

/// Directories above a subvolume that are named at most: more means that they form a ring.
const DEPTH_MAX: usize = 4096;

impl Fs {
    /// The caller of a call that no front end has checked.
    fn checked_caller<'a>(&self, ctx: &'a Context) -> Caller<'a> {
        Caller { ctx, checks: true }
    }

    pub(super) fn make_subvolume(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()> {
        let dir = self.inode(parent)?;
        subvolumes::create(&self.mount, &self.checked_caller(ctx), &dir, name)?;
        self.name_changed(parent, name);
        Ok(())
    }

    pub(super) fn make_snapshot(
        &self,
        ctx: &Context,
        source: NodeId,
        parent: NodeId,
        name: &[u8],
        is_read_only: bool,
    ) -> Result<()> {
        let (source, dir) = (self.inode(source)?, self.inode(parent)?);
        file::write_back_all(&self.mount)?;
        let caller = self.checked_caller(ctx);
        subvolumes::snapshot(&self.mount, &caller, &source, (&dir, name), is_read_only)?;
        self.name_changed(parent, name);
        Ok(())
    }

    pub(super) fn remove_subvolume(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()> {
        let dir = self.inode(parent)?;
        subvolumes::delete(&self.mount, &self.checked_caller(ctx), &dir, name)?;
        self.name_changed(parent, name);
        Ok(())
    }

    pub(super) fn make_read_only(&self, ctx: &Context, root: NodeId, is_read_only: bool) -> Result<()> {
        let root = self.inode(root)?;
        if is_read_only {
            file::write_back_all(&self.mount)?;
        }
        subvolumes::set_read_only(&self.mount, &self.checked_caller(ctx), &root, is_read_only)
    }

    fn name_changed(&self, parent: NodeId, name: &[u8]) {
        if let Some(caches) = self.caches.get() {
            caches.name_changed(parent, name);
        }
    }

    pub(super) fn next_listed(&self, id: u64) -> Result<Option<SubvolumeInfo>> {
        match subvolumes::next_listed(&self.mount, TreeId(id))? {
            Some(found) => Ok(Some(self.info_of(&found)?)),
            None => Ok(None),
        }
    }

    fn info_of(&self, found: &Listed) -> Result<SubvolumeInfo> {
        let item = &found.item;
        let time = |t: Timespec| Timestamp::new(t.sec.get().cast_signed(), t.nsec.get());
        Ok(SubvolumeInfo {
            id: found.id.get(),
            parent_id: found.parent.map_or(0, TreeId::get),
            path: self.path_of(found)?,
            is_read_only: item.subvolume_flags() & root_flags::SUBVOL_RDONLY != 0,
            generation: item.generation.get(),
            created_generation: item.otransid.get(),
            uuid: item.uuid,
            parent_uuid: item.parent_uuid,
            received_uuid: item.received_uuid,
            created: time(item.otime),
            changed: time(item.ctime),
        })
    }

    /// The path from the top level.
    fn path_of(&self, found: &Listed) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = found.clone();
        while let Some(parent) = at.parent {
            names.push(at.name.clone());
            let above = subvol::load(&self.mount, parent)?.ok_or(cowshed_vfs::Error::NotFound)?;
            let mut ino = at.dir;
            while ino != above.root_ino {
                let (up, name) = dir::name_of(&above.tree, ino)?.ok_or(cowshed_vfs::Error::NotFound)?;
                names.push(name);
                ino = up;
                if names.len() > DEPTH_MAX {
                    return Err(ring(parent, ino));
                }
            }
            at = subvolumes::next_listed(&self.mount, parent)?.ok_or(cowshed_vfs::Error::NotFound)?;
            if at.id != parent || names.len() > DEPTH_MAX {
                return Err(ring(parent, ino));
            }
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }
}

fn ring(tree: TreeId, ino: ObjectId) -> Error {
    let what = format!("no way leads from directory {ino} to the top level");
    Error::Store(StoreError::CorruptTree { tree, what })
}
