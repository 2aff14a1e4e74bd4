//! Commands to bytes, with their attributes in the order in which Linux sends them.

use zerocopy::IntoBytes;

use crate::command::{Command, Node, Time};
use crate::error::WriteError;
use crate::kind::{Attribute as A, Kind, Version};
use crate::wire::Timespec;

type Result = std::result::Result<(), WriteError>;

/// The payload of one command under construction.
pub(crate) struct Payload<'b> {
    pub(crate) bytes: &'b mut Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) version: Version,
}

impl Payload<'_> {
    fn bytes(&mut self, attribute: A, value: &[u8]) -> Result {
        let Ok(len) = u16::try_from(value.len()) else {
            return Err(WriteError::TooLong {
                kind: self.kind,
                attribute,
                found_bytes: value.len(),
                limit_bytes: u16::MAX.into(),
            });
        };
        self.bytes.extend_from_slice(&attribute.number().to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// The last attribute: in version 2 without a length.
    fn data(&mut self, value: &[u8]) -> Result {
        if self.version < Version::V2 {
            return self.bytes(A::Data, value);
        }
        self.bytes.extend_from_slice(&A::Data.number().to_le_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    fn u64(&mut self, attribute: A, value: u64) -> Result {
        self.bytes(attribute, &value.to_le_bytes())
    }

    fn u32(&mut self, attribute: A, value: u32) -> Result {
        self.bytes(attribute, &value.to_le_bytes())
    }

    fn time(&mut self, attribute: A, value: Time) -> Result {
        let time = Timespec {
            secs: value.secs.into(),
            nanos: value.nanos.into(),
        };
        self.bytes(attribute, time.as_bytes())
    }

    fn made(&mut self, path: &[u8], ino: Option<u64>, node: Option<Node>) -> Result {
        self.bytes(A::Path, path)?;
        if let Some(ino) = ino {
            self.u64(A::Ino, ino)?;
        }
        if let Some(node) = node {
            self.u64(A::Rdev, node.rdev)?;
            self.u64(A::Mode, node.mode)?;
        }
        Ok(())
    }

    /// Appends all attributes of a command.
    pub(crate) fn command(&mut self, command: &Command<'_>) -> Result {
        match *command {
            Command::Subvol { path, uuid, ctransid } => self.start(path, &uuid, ctransid),
            Command::Snapshot {
                path,
                uuid,
                ctransid,
                clone_uuid,
                clone_ctransid,
            } => {
                self.start(path, &uuid, ctransid)?;
                self.bytes(A::CloneUuid, &clone_uuid)?;
                self.u64(A::CloneCtransid, clone_ctransid)
            }
            Command::Mkfile { path, ino } | Command::Mkdir { path, ino } => self.made(path, ino, None),
            Command::Mknod { path, ino, node } => self.made(path, ino, Some(node)),
            Command::Mkfifo { path, ino, node } | Command::Mksock { path, ino, node } => self.made(path, ino, node),
            Command::Symlink { path, ino, target } => {
                self.made(path, ino, None)?;
                self.bytes(A::PathLink, target)
            }
            Command::Rename { path, to } => {
                self.bytes(A::Path, path)?;
                self.bytes(A::PathTo, to)
            }
            Command::Link { path, existing } => {
                self.bytes(A::Path, path)?;
                self.bytes(A::PathLink, existing)
            }
            Command::Unlink { path } | Command::Rmdir { path } => self.bytes(A::Path, path),
            Command::End => Ok(()),
            Command::Write { .. }
            | Command::Clone { .. }
            | Command::Truncate { .. }
            | Command::UpdateExtent { .. }
            | Command::Fallocate { .. }
            | Command::EncodedWrite { .. } => self.contents(command),
            Command::SetXattr { .. }
            | Command::RemoveXattr { .. }
            | Command::Chmod { .. }
            | Command::Chown { .. }
            | Command::Utimes { .. }
            | Command::Fileattr { .. } => self.metadata(command),
        }
    }

    fn start(&mut self, path: &[u8], uuid: &[u8; 16], ctransid: u64) -> Result {
        self.bytes(A::Path, path)?;
        self.bytes(A::Uuid, uuid)?;
        self.u64(A::Ctransid, ctransid)
    }

    fn contents(&mut self, command: &Command<'_>) -> Result {
        match *command {
            Command::Write { path, offset, data } => {
                self.bytes(A::Path, path)?;
                self.u64(A::FileOffset, offset)?;
                self.data(data)
            }
            Command::Clone {
                path,
                offset,
                len,
                clone_uuid,
                clone_ctransid,
                clone_path,
                clone_offset,
            } => {
                self.u64(A::FileOffset, offset)?;
                self.u64(A::CloneLen, len)?;
                self.bytes(A::Path, path)?;
                self.bytes(A::CloneUuid, &clone_uuid)?;
                self.u64(A::CloneCtransid, clone_ctransid)?;
                self.bytes(A::ClonePath, clone_path)?;
                self.u64(A::CloneOffset, clone_offset)
            }
            Command::Truncate { path, size } => {
                self.bytes(A::Path, path)?;
                self.u64(A::Size, size)
            }
            Command::UpdateExtent { path, offset, len } => {
                self.bytes(A::Path, path)?;
                self.u64(A::FileOffset, offset)?;
                self.u64(A::Size, len)
            }
            Command::Fallocate {
                path,
                mode,
                offset,
                len,
            } => {
                self.bytes(A::Path, path)?;
                self.u32(A::FallocateMode, mode)?;
                self.u64(A::FileOffset, offset)?;
                self.u64(A::Size, len)
            }
            Command::EncodedWrite {
                path,
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                encryption,
                data,
            } => {
                self.bytes(A::Path, path)?;
                self.u64(A::FileOffset, offset)?;
                self.u64(A::UnencodedFileLen, unencoded_file_len)?;
                self.u64(A::UnencodedLen, unencoded_len)?;
                self.u64(A::UnencodedOffset, unencoded_offset)?;
                for (attribute, value) in [(A::Compression, compression), (A::Encryption, encryption)] {
                    if let Some(value) = value {
                        self.u32(attribute, value)?;
                    }
                }
                self.data(data)
            }
            _ => Ok(()),
        }
    }

    fn metadata(&mut self, command: &Command<'_>) -> Result {
        match *command {
            Command::SetXattr { path, name, data } => {
                self.bytes(A::Path, path)?;
                self.bytes(A::XattrName, name)?;
                self.bytes(A::XattrData, data)
            }
            Command::RemoveXattr { path, name } => {
                self.bytes(A::Path, path)?;
                self.bytes(A::XattrName, name)
            }
            Command::Chmod { path, mode } => {
                self.bytes(A::Path, path)?;
                self.u64(A::Mode, mode)
            }
            Command::Chown { path, uid, gid } => {
                self.bytes(A::Path, path)?;
                self.u64(A::Uid, uid)?;
                self.u64(A::Gid, gid)
            }
            Command::Utimes {
                path,
                atime,
                mtime,
                ctime,
                otime,
            } => {
                self.bytes(A::Path, path)?;
                self.time(A::Atime, atime)?;
                self.time(A::Mtime, mtime)?;
                self.time(A::Ctime, ctime)?;
                match otime {
                    Some(otime) => self.time(A::Otime, otime),
                    None => Ok(()),
                }
            }
            Command::Fileattr { path, flags } => {
                self.bytes(A::Path, path)?;
                self.u64(A::Fileattr, flags)
            }
            _ => Ok(()),
        }
    }
}
