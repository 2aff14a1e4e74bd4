//! Modes, owners, times, extended attributes, access lists, flags.

use std::io;

use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};

use super::Actor;
use crate::names;

pub fn chmod(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::any(&mut actor.rng);
    let is_dir = names::split(&path).1.starts_with('d');
    // Directories stay open to all: what is in them is worked on. A file's name may be a
    // directory's, too, which its owner has to be able to look at.
    let mode = match is_dir {
        true => [0o777, 0o3777, 0o2777][actor.rng.index(3)],
        false => [0o700, 0o744, 0o766, 0o755, 0o4777, 0o6777][actor.rng.index(6)],
    };
    *told = format!("chmod {path} {mode:o}");
    Ok(rustix::fs::chmod(actor.path(&path), Mode::from_raw_mode(mode))?)
}

pub fn chown(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::any(&mut actor.rng);
    let mut id = || [None, Some(0), Some(1000)][actor.rng.index(3)];
    let (uid, gid) = (id(), id());
    *told = format!("chown {path} {uid:?} {gid:?}");
    std::os::unix::fs::lchown(actor.path(&path), uid, gid)
}

pub fn utimens(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::any(&mut actor.rng);
    let tv_sec = actor.rng.below(1 << 30) as i64;
    *told = format!("utimens {path} {tv_sec}");
    let time = Timespec { tv_sec, tv_nsec: 7 };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::utimensat(CWD, actor.path(&path), &times, flags)?)
}

const XATTRS: [&str; 3] = ["user.a", "user.b", "trusted.c"];

pub fn set_xattr(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (path, name) = (names::any(&mut actor.rng), XATTRS[actor.rng.index(3)]);
    let value = vec![b'v'; 1 + actor.rng.index(60)];
    *told = format!("setxattr {path} {name} {}", value.len());
    Ok(rustix::fs::lsetxattr(
        actor.path(&path),
        name,
        &value,
        XattrFlags::empty(),
    )?)
}

pub fn remove_xattr(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (path, name) = (names::any(&mut actor.rng), XATTRS[actor.rng.index(3)]);
    *told = format!("removexattr {path} {name}");
    Ok(rustix::fs::lremovexattr(actor.path(&path), name)?)
}

/// An access list as Linux takes it: for the owner, user 1000, the group, the mask and others.
fn list(owner: u16, user: u16) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let entries = [
        (0x01, owner, NO_ID),
        (0x02, user, 1000),
        (0x04, 7, NO_ID),
        (0x10, 7, NO_ID),
        (0x20, 7, NO_ID),
    ];
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        let entry: [&[u8]; 3] = [&u16::to_le_bytes(tag), &u16::to_le_bytes(rights), &u32::to_le_bytes(id)];
        bytes.extend(entry.concat());
    }
    bytes
}

pub fn set_acl(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::any(&mut actor.rng);
    let name = ["system.posix_acl_access", "system.posix_acl_default"][actor.rng.index(2)];
    if actor.rng.one_in(3) {
        *told = format!("removexattr {path} {name}");
        return Ok(rustix::fs::removexattr(actor.path(&path), name)?);
    }
    let rights = 4 + actor.rng.below(4) as u16;
    *told = format!("setxattr {path} {name} {rights}");
    let value = list(7, rights);
    Ok(rustix::fs::setxattr(
        actor.path(&path),
        name,
        &value,
        XattrFlags::empty(),
    )?)
}

pub fn flags(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::any(&mut actor.rng);
    let flags = [IFlags::empty(), IFlags::NODUMP, IFlags::NOATIME, IFlags::NOCOW][actor.rng.index(4)];
    *told = format!("chattr {path} {flags:?}");
    let file = actor.open(&path, OFlags::RDONLY | OFlags::NOFOLLOW)?;
    Ok(rustix::fs::ioctl_setflags(file, flags)?)
}
