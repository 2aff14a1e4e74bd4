//! What a caller may do with an inode: read-only volumes, inode flags, and permissions where they
//! are ours to check.

use cowshed_vfs::{Access, Attr, Context, Error as Errno, FileKind, PERM_MASK, perm};

use crate::error::{Error, Result, StoreError};
use crate::files::Files;
use crate::object::{Inode, InodeAttr, flags};
use crate::xattr;

/// The caller, and whether its permissions have been checked already.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub(crate) ctx: &'a Context,
    /// Permissions are checked here; else a front end has done it.
    pub(crate) checks: bool,
}

impl Caller<'_> {
    /// Mode bits and access lists allow this.
    pub(crate) fn need(&self, inode: &Inode, want: Access) -> Result<()> {
        if !self.checks || want.is_empty() {
            return Ok(());
        }
        let list = xattr::acl::access_list(inode)?;
        Ok(perm::check(&self.ctx.creds, &inode.vfs_attr(), list.as_deref(), want)?)
    }

    /// As [`Caller::need`] of an inode that is not in memory and has no access list.
    pub(crate) fn need_by_mode(&self, attr: &InodeAttr, kind: FileKind, want: Access) -> Result<()> {
        let whose = Attr {
            ino: 0,
            size_bytes: attr.size,
            blocks_512: 0,
            is_estimate: true,
            blksize: 0,
            kind,
            perm: attr.mode & PERM_MASK,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: 0,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.otime,
        };
        Ok(perm::check(&self.ctx.creds, &whose, None, want)?)
    }

    /// Devices are made by user 0, as mknod(2) has it. A whiteout is no device.
    pub(crate) fn need_node(&self, kind: FileKind, rdev: u64) -> Result<()> {
        let is_device = match kind {
            FileKind::CharDevice => rdev != 0,
            FileKind::BlockDevice => true,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink | FileKind::Fifo | FileKind::Socket => false,
        };
        match self.checks && is_device && !self.ctx.creds.is_privileged() {
            true => Err(Errno::NotPermitted.into()),
            false => Ok(()),
        }
    }

    /// The inode belongs to the caller, or the caller is user 0.
    pub(crate) fn need_owner(&self, inode: &Inode) -> Result<()> {
        let creds = &self.ctx.creds;
        match creds.is_privileged() || creds.uid == inode.attr_now().uid {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    fn need_sticky(&self, dir: &Inode, child: &Inode) -> Result<()> {
        if !self.checks {
            return Ok(());
        }
        let owner = child.attr_now().uid;
        Ok(perm::check_sticky(&self.ctx.creds, &dir.vfs_attr(), owner)?)
    }
}

/// The volume can be changed at all.
pub(crate) fn check_volume_writable(files: &Files) -> Result<()> {
    if files.objects().is_read_only() || files.store().volume().is_read_only() {
        return Err(Error::Store(StoreError::ReadOnly));
    }
    Ok(())
}

/// The inode can be changed at all. In a deleted subvolume directories cannot, and all else can: a
/// program that has a file open goes on with it.
pub(crate) fn check_writable(files: &Files, inode: &Inode) -> Result<()> {
    let is_fixed = match inode.is_dir() {
        true => inode.subvol.has_fixed_names(),
        false => inode.subvol.is_read_only(),
    };
    if is_fixed {
        return Err(Error::Store(StoreError::ReadOnly));
    }
    check_volume_writable(files)
}

/// Neither immutable nor append-only: what changes of owner, mode, xattrs and links ask for.
pub(crate) fn check_changeable(files: &Files, inode: &Inode) -> Result<()> {
    check_writable(files, inode)?;
    // No list of operations reaches the stand-in for a subvolume.
    if inode.is_placeholder() || inode.flags() & (flags::IMMUTABLE | flags::APPEND) != 0 {
        return Err(Errno::NotPermitted.into());
    }
    Ok(())
}

/// The inode is a directory that still has a name, and not a stand-in.
pub(crate) fn check_dir(inode: &Inode) -> Result<()> {
    if !inode.is_dir() {
        return Err(Errno::NotDirectory.into());
    }
    Ok(())
}

/// A name may be made in the directory.
pub(crate) fn may_create(files: &Files, caller: &Caller<'_>, dir: &Inode) -> Result<()> {
    check_dir(dir)?;
    check_writable(files, dir)?;
    if dir.is_placeholder() {
        return Err(Errno::AccessDenied.into());
    }
    let attr = dir.attr_now();
    if attr.flags & flags::IMMUTABLE != 0 {
        return Err(Errno::NotPermitted.into());
    }
    caller.need(dir, Access::WRITE | Access::EXEC)?;
    if attr.nlink == 0 {
        return Err(Errno::NotFound.into());
    }
    Ok(())
}

/// A name of `child` may leave the directory.
pub(crate) fn may_remove(files: &Files, caller: &Caller<'_>, dir: &Inode, child: &Inode) -> Result<()> {
    check_writable(files, dir)?;
    let dir_flags = dir.flags();
    if dir_flags & flags::IMMUTABLE != 0 {
        return Err(Errno::NotPermitted.into());
    }
    caller.need(dir, Access::WRITE | Access::EXEC)?;
    if dir_flags & flags::APPEND != 0 || child.flags() & (flags::APPEND | flags::IMMUTABLE) != 0 {
        return Err(Errno::NotPermitted.into());
    }
    caller.need_sticky(dir, child)
}
