//! Commands from their attributes. Attributes that a command has no use for are left alone: Linux
//! sends some.

use crate::attributes::Attributes;
use crate::command::{Command, Node};
use crate::error::AttributeError;
use crate::kind::{Attribute as A, Kind};

type Result<T> = std::result::Result<T, AttributeError>;

/// The command of a kind with these attributes.
pub(crate) fn command<'a>(kind: Kind, has: &Attributes<'a>) -> Result<Command<'a>> {
    match kind {
        Kind::Subvol | Kind::Snapshot => start(kind, has),
        Kind::Mkfile | Kind::Mkdir | Kind::Mknod | Kind::Mkfifo | Kind::Mksock | Kind::Symlink => made(kind, has),
        Kind::Rename | Kind::Link | Kind::Unlink | Kind::Rmdir => named(kind, has),
        Kind::Write | Kind::Clone | Kind::Truncate | Kind::UpdateExtent | Kind::Fallocate | Kind::EncodedWrite => {
            contents(kind, has)
        }
        Kind::SetXattr | Kind::RemoveXattr | Kind::Chmod | Kind::Chown | Kind::Utimes | Kind::Fileattr => {
            metadata(kind, has)
        }
        Kind::End => Ok(Command::End),
    }
}

fn start<'a>(kind: Kind, has: &Attributes<'a>) -> Result<Command<'a>> {
    let (path, uuid, ctransid) = (has.bytes(A::Path)?, has.uuid(A::Uuid)?, has.u64(A::Ctransid)?);
    Ok(match kind {
        Kind::Snapshot => Command::Snapshot {
            path,
            uuid,
            ctransid,
            clone_uuid: has.uuid(A::CloneUuid)?,
            clone_ctransid: has.u64(A::CloneCtransid)?,
        },
        _ => Command::Subvol { path, uuid, ctransid },
    })
}

fn made<'a>(kind: Kind, has: &Attributes<'a>) -> Result<Command<'a>> {
    let (path, ino) = (has.bytes(A::Path)?, has.maybe_u64(A::Ino)?);
    let node = match (has.maybe_u64(A::Rdev)?, has.maybe_u64(A::Mode)?) {
        (Some(rdev), Some(mode)) => Some(Node { rdev, mode }),
        _ => None,
    };
    Ok(match kind {
        Kind::Mkdir => Command::Mkdir { path, ino },
        Kind::Mknod => Command::Mknod {
            path,
            ino,
            node: Node {
                rdev: has.u64(A::Rdev)?,
                mode: has.u64(A::Mode)?,
            },
        },
        Kind::Mkfifo => Command::Mkfifo { path, ino, node },
        Kind::Mksock => Command::Mksock { path, ino, node },
        Kind::Symlink => Command::Symlink {
            path,
            ino,
            target: has.bytes(A::PathLink)?,
        },
        _ => Command::Mkfile { path, ino },
    })
}

fn named<'a>(kind: Kind, has: &Attributes<'a>) -> Result<Command<'a>> {
    let path = has.bytes(A::Path)?;
    Ok(match kind {
        Kind::Rename => Command::Rename {
            path,
            to: has.bytes(A::PathTo)?,
        },
        Kind::Link => Command::Link {
            path,
            existing: has.bytes(A::PathLink)?,
        },
        Kind::Rmdir => Command::Rmdir { path },
        _ => Command::Unlink { path },
    })
}

fn contents<'a>(kind: Kind, has: &Attributes<'a>) -> Result<Command<'a>> {
    let path = has.bytes(A::Path)?;
    if kind == Kind::Truncate {
        let size = has.u64(A::Size)?;
        return Ok(Command::Truncate { path, size });
    }
    let offset = has.u64(A::FileOffset)?;
    Ok(match kind {
        Kind::Clone => Command::Clone {
            path,
            offset,
            len: has.u64(A::CloneLen)?,
            clone_uuid: has.uuid(A::CloneUuid)?,
            clone_ctransid: has.u64(A::CloneCtransid)?,
            clone_path: has.bytes(A::ClonePath)?,
            clone_offset: has.u64(A::CloneOffset)?,
        },
        Kind::UpdateExtent => Command::UpdateExtent {
            path,
            offset,
            len: has.u64(A::Size)?,
        },
        Kind::Fallocate => Command::Fallocate {
            path,
            mode: has.u32(A::FallocateMode)?,
            offset,
            len: has.u64(A::Size)?,
        },
        Kind::EncodedWrite => Command::EncodedWrite {
            path,
            offset,
            unencoded_file_len: has.u64(A::UnencodedFileLen)?,
            unencoded_len: has.u64(A::UnencodedLen)?,
            unencoded_offset: has.u64(A::UnencodedOffset)?,
            compression: has.maybe_u32(A::Compression)?,
            encryption: has.maybe_u32(A::Encryption)?,
            data: has.bytes(A::Data)?,
        },
        _ => Command::Write {
            path,
            offset,
            data: has.bytes(A::Data)?,
        },
    })
}

fn metadata<'a>(kind: Kind, has: &Attributes<'a>) -> Result<Command<'a>> {
    let path = has.bytes(A::Path)?;
    Ok(match kind {
        Kind::SetXattr => Command::SetXattr {
            path,
            name: has.bytes(A::XattrName)?,
            data: has.bytes(A::XattrData)?,
        },
        Kind::RemoveXattr => Command::RemoveXattr {
            path,
            name: has.bytes(A::XattrName)?,
        },
        Kind::Chown => Command::Chown {
            path,
            uid: has.u64(A::Uid)?,
            gid: has.u64(A::Gid)?,
        },
        Kind::Utimes => Command::Utimes {
            path,
            atime: has.time(A::Atime)?,
            mtime: has.time(A::Mtime)?,
            ctime: has.time(A::Ctime)?,
            otime: has.maybe_time(A::Otime)?,
        },
        Kind::Fileattr => Command::Fileattr {
            path,
            flags: has.u64(A::Fileattr)?,
        },
        _ => Command::Chmod {
            path,
            mode: has.u64(A::Mode)?,
        },
    })
}
