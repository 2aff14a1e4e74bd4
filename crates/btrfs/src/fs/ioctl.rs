//! Ioctls with plain structures: inode flags, and what tools of the format ask about a volume.

use std::sync::Arc;

use cowshed_vfs::{Error as Errno, Ioctl, IoctlReply};

use crate::Engine;
use crate::dir::staged::Staged;
use crate::dir::{prepare_and_join, touch_inode};
use crate::error::Result;
use crate::file;
use crate::file::compress::Algorithm;
use crate::fs::wire;
use crate::inode::Inode;
use crate::inode::access::{Caller, check_writable};
use crate::inode::flags::{self, CompressionProperty, FlagSubject};
use crate::space::Budget;
use crate::xattr::{self, props};

/// Command numbers of `<linux/fs.h>` and `<linux/btrfs.h>`: direction, size and letter are in them.
mod cmd {
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const GETFLAGS_32: u32 = 0x8004_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    pub const SETFLAGS_32: u32 = 0x4004_6602;
    pub const GETVERSION: u32 = 0x8008_7601;
    pub const GETVERSION_32: u32 = 0x8004_7601;
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
    pub const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
    pub const FS_INFO: u32 = 0x8400_941f;
    pub const GET_FSLABEL: u32 = 0x8100_9431;
}

/// `struct fsxattr`: five words and eight bytes of padding.
const FSXATTR_BYTES: usize = 28;
/// `BTRFS_SUBVOL_RDONLY` of `BTRFS_IOC_SUBVOL_GETFLAGS`.
const SUBVOL_RDONLY: u64 = 1 << 1;
/// `struct btrfs_ioctl_fs_info_args`.
const FS_INFO_BYTES: usize = 1024;

/// Does the command change what `stat` shows?
pub(super) fn changes_attributes(cmd: u32) -> bool {
    matches!(cmd, cmd::SETFLAGS | cmd::SETFLAGS_32 | cmd::FSSETXATTR)
}

/// Answers an ioctl. Errors: `NotIoctl` (unknown).
pub(super) fn ioctl(
    engine: &Engine,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    call: &Ioctl,
    input: &[u8],
    output: &mut [u8],
) -> Result<IoctlReply> {
    let word = || -> Result<u32> { Ok(u32::from_le_bytes(*input.first_chunk().ok_or(Errno::Invalid)?)) };
    match call.cmd {
        cmd::GETFLAGS | cmd::GETFLAGS_32 => reply(output, &flags::to_chattr(inode.flags()).to_le_bytes()),
        cmd::SETFLAGS | cmd::SETFLAGS_32 => {
            let wanted = word()?;
            set_flags(engine, caller, inode, |old, subject| {
                flags::from_chattr(old, wanted, subject).map(|(new, property)| (new, Some(property)))
            })
        }
        cmd::FSGETXATTR => {
            let mut bytes = [0; FSXATTR_BYTES];
            bytes[..4].copy_from_slice(&flags::to_xflags(inode.flags()).to_le_bytes());
            reply(output, &bytes)
        }
        cmd::FSSETXATTR => {
            let bytes: &[u8; FSXATTR_BYTES] = input.first_chunk().ok_or(Errno::Invalid)?;
            // Extent size hints and project ids are not in the format.
            if bytes[4..].iter().any(|b| *b != 0) {
                return Err(Errno::Invalid.into());
            }
            let wanted = word()?;
            set_flags(engine, caller, inode, |old, _| {
                flags::from_xflags(old, wanted).map(|new| (new, None))
            })
        }
        cmd::GETVERSION | cmd::GETVERSION_32 => {
            let generation = inode.attr_now().generation.get() as u32;
            reply(output, &generation.to_le_bytes())
        }
        cmd::SUBVOL_GETFLAGS => {
            if inode.ino != inode.subvol.root_ino {
                return Err(Errno::Invalid.into());
            }
            let bits = if inode.subvol.is_read_only() { SUBVOL_RDONLY } else { 0 };
            reply(output, &bits.to_le_bytes())
        }
        cmd::FS_INFO => reply(output, &fs_info(engine)),
        cmd::GET_FSLABEL => reply(output, &engine.volume.superblock().label),
        wire::SYNC => file::sync_all(engine).map(|()| IoctlReply::default()),
        _ => Err(Errno::NotIoctl.into()),
    }
}

pub(super) fn reply(output: &mut [u8], bytes: &[u8]) -> Result<IoctlReply> {
    let room = output.get_mut(..bytes.len()).ok_or(Errno::Invalid)?;
    room.copy_from_slice(bytes);
    Ok(IoctlReply {
        result: 0,
        out_bytes: bytes.len(),
    })
}

/// The head of `btrfs_ioctl_fs_info_args`: max_id, num_devices, fsid, nodesize, sectorsize, clone_alignment; the rest is asked for by
/// flags, and none of it is given.
fn fs_info(engine: &Engine) -> [u8; FS_INFO_BYTES] {
    let sb = engine.volume.superblock();
    let mut head = Vec::with_capacity(44);
    head.extend_from_slice(&sb.num_devices.get().to_le_bytes());
    head.extend_from_slice(&sb.num_devices.get().to_le_bytes());
    head.extend_from_slice(&sb.fsid);
    for n in [sb.nodesize.get(), sb.sectorsize.get(), sb.sectorsize.get()] {
        head.extend_from_slice(&n.to_le_bytes());
    }
    let mut bytes = [0; FS_INFO_BYTES];
    bytes[..head.len()].copy_from_slice(&head);
    bytes
}

fn set_flags(
    engine: &Engine,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    compute: impl Fn(u64, FlagSubject) -> std::result::Result<(u64, Option<CompressionProperty>), Errno>,
) -> Result<IoctlReply> {
    check_writable(engine, inode)?;
    if inode.is_placeholder() {
        return Err(Errno::NotPermitted.into());
    }
    let space = engine.reserve(Budget::XATTR)?;
    let _lock = inode.lock.write();
    let attr = inode.attr_now();
    let creds = &caller.ctx.creds;
    if caller.checks && !(creds.is_privileged() || creds.uid == attr.uid) {
        return Err(Errno::NotPermitted.into());
    }
    let subject = FlagSubject {
        is_regular: inode.is_regular(),
        is_empty: attr.size == 0,
        mount_nodatacow: engine.objects.policy().nodatacow,
    };
    let (new, property) = compute(attr.flags, subject)?;
    let locks = flags::IMMUTABLE | flags::APPEND;
    if (new ^ attr.flags) & locks != 0 && caller.checks && !creds.is_privileged() {
        return Err(Errno::NotPermitted.into());
    }
    let now = engine.env.now();
    let (join, mut staged) = prepare_and_join(engine, |generation| {
        let mut staged = Staged::new(&inode.tree);
        match property {
            Some(CompressionProperty::Set) => {
                let name = props::COMPRESSION_NAME;
                let mounted = engine.objects.policy().compress.map(|policy| policy.how.algorithm());
                let value = mounted.unwrap_or(Algorithm::Zlib).name().as_bytes();
                xattr::stage_set(&mut staged, inode.ino, name, value, generation)?;
            }
            Some(CompressionProperty::Remove) if !inode.xattrs.is_known_empty() => {
                xattr::stage_remove(&mut staged, inode.ino, props::COMPRESSION_NAME)?;
            }
            Some(CompressionProperty::Remove) | None => {}
        }
        Ok(staged)
    })?;
    if property == Some(CompressionProperty::Set) {
        inode.xattrs.set_some();
    }
    let mut state = inode.attr.lock();
    state.attr.flags = new;
    touch_inode(&mut state, join.generation(), now);
    staged.put(inode.key(), inode.item_bytes(&state));
    join.apply(staged.into_batch(), space);
    Ok(IoctlReply::default())
}
