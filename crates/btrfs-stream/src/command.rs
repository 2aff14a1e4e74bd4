//! The commands.

use crate::kind::Kind;

/// A time since 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds. Not checked to be below 10^9.
    pub nanos: u32,
}

/// Type and device number of a special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Device number, as `stat` has it for majors below 4096.
    pub rdev: u64,
    /// Type and permission bits.
    pub mode: u64,
}

/// Values of the attribute `compression`.
pub mod compression {
    /// Not compressed.
    pub const NONE: u32 = 0;
    /// zlib.
    pub const ZLIB: u32 = 1;
    /// zstd.
    pub const ZSTD: u32 = 2;
    /// LZO in the frame of btrfs, sectors of 4 KiB.
    pub const LZO_4K: u32 = 3;
    /// The same with sectors of 64 KiB; the numbers between are those of 8, 16 and 32 KiB.
    pub const LZO_64K: u32 = 7;

    /// Bytes of a sector where this is LZO.
    pub const fn lzo_sector_bytes(compression: u32) -> Option<u32> {
        match compression {
            LZO_4K => Some(0x1000),
            4 => Some(0x2000),
            5 => Some(0x4000),
            6 => Some(0x8000),
            LZO_64K => Some(0x1_0000),
            _ => None,
        }
    }

    /// LZO with sectors of so many bytes.
    pub const fn lzo(sector_bytes: u64) -> u32 {
        match sector_bytes {
            0x2000 => 4,
            0x4000 => 5,
            0x8000 => 6,
            0x1_0000 => LZO_64K,
            _ => LZO_4K,
        }
    }
}

/// A command. Paths are relative to the subvolume, without a leading `/`, and empty for its root
/// directory. Nothing but the form is checked: paths may be anything that has a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Begins a new subvolume.
    Subvol {
        /// Where it shall be, relative to where the stream is received.
        path: &'a [u8],
        /// Its uuid on the sending side, or the one that it was received under.
        uuid: [u8; 16],
        /// Transaction of its last change on the sending side.
        ctransid: u64,
    },
    /// Begins a new subvolume with the content of another one.
    Snapshot {
        /// As of [`Command::Subvol`].
        path: &'a [u8],
        /// As of [`Command::Subvol`].
        uuid: [u8; 16],
        /// As of [`Command::Subvol`].
        ctransid: u64,
        /// The subvolume to begin with.
        clone_uuid: [u8; 16],
        /// Its transaction.
        clone_ctransid: u64,
    },
    /// Makes an empty file.
    Mkfile {
        /// The file.
        path: &'a [u8],
        /// Inode number on the sending side.
        ino: Option<u64>,
    },
    /// Makes a directory.
    Mkdir {
        /// The directory.
        path: &'a [u8],
        /// Inode number on the sending side.
        ino: Option<u64>,
    },
    /// Makes a device node.
    Mknod {
        /// The node.
        path: &'a [u8],
        /// Inode number on the sending side.
        ino: Option<u64>,
        /// Type and number.
        node: Node,
    },
    /// Makes a named pipe.
    Mkfifo {
        /// The pipe.
        path: &'a [u8],
        /// Inode number on the sending side.
        ino: Option<u64>,
        /// Sent by Linux without need.
        node: Option<Node>,
    },
    /// Makes a socket.
    Mksock {
        /// The socket.
        path: &'a [u8],
        /// Inode number on the sending side.
        ino: Option<u64>,
        /// Sent by Linux without need.
        node: Option<Node>,
    },
    /// Makes a symbolic link.
    Symlink {
        /// The link.
        path: &'a [u8],
        /// Inode number on the sending side.
        ino: Option<u64>,
        /// What it contains: any text.
        target: &'a [u8],
    },
    /// Renames.
    Rename {
        /// From.
        path: &'a [u8],
        /// To. What is there is replaced.
        to: &'a [u8],
    },
    /// Gives a file a further name.
    Link {
        /// The new name.
        path: &'a [u8],
        /// An existing one.
        existing: &'a [u8],
    },
    /// Removes a name that is no directory.
    Unlink {
        /// The name.
        path: &'a [u8],
    },
    /// Removes an empty directory.
    Rmdir {
        /// The directory.
        path: &'a [u8],
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Of which inode.
        path: &'a [u8],
        /// With its name space, as in setxattr(2).
        name: &'a [u8],
        /// The value.
        data: &'a [u8],
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Of which inode.
        path: &'a [u8],
        /// With its name space, as in setxattr(2).
        name: &'a [u8],
    },
    /// Writes.
    Write {
        /// The file.
        path: &'a [u8],
        /// In bytes.
        offset: u64,
        /// Less than 64 KiB in version 1.
        data: &'a [u8],
    },
    /// Shares a range of a file.
    Clone {
        /// The file that changes.
        path: &'a [u8],
        /// In bytes.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Subvolume of the source.
        clone_uuid: [u8; 16],
        /// Its transaction.
        clone_ctransid: u64,
        /// The source, relative to its subvolume.
        clone_path: &'a [u8],
        /// In the source, in bytes.
        clone_offset: u64,
    },
    /// Changes the size of a file.
    Truncate {
        /// The file.
        path: &'a [u8],
        /// Bytes.
        size: u64,
    },
    /// Sets permission bits.
    Chmod {
        /// Of which inode.
        path: &'a [u8],
        /// The lower twelve bits count.
        mode: u64,
    },
    /// Sets the owner.
    Chown {
        /// Of which inode.
        path: &'a [u8],
        /// Number of a user.
        uid: u64,
        /// Number of a group.
        gid: u64,
    },
    /// Sets times.
    Utimes {
        /// Of which inode.
        path: &'a [u8],
        /// Last access.
        atime: Time,
        /// Last change of the contents.
        mtime: Time,
        /// Last change of the inode; cannot be set through Linux.
        ctime: Time,
        /// Creation, from version 2 on; cannot be set through Linux.
        otime: Option<Time>,
    },
    /// Ends the stream. Another one may follow.
    End,
    /// A range has changed; its data was not sent (`btrfs send --no-data`).
    UpdateExtent {
        /// The file.
        path: &'a [u8],
        /// In bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Version 2: fallocate(2).
    Fallocate {
        /// The file.
        path: &'a [u8],
        /// As of fallocate(2).
        mode: u32,
        /// In bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Version 2: sets flags of an inode.
    Fileattr {
        /// Of which inode.
        path: &'a [u8],
        /// As in an inode item.
        flags: u64,
    },
    /// Version 2: writes data in the form in which the sending side stores it.
    EncodedWrite {
        /// The file.
        path: &'a [u8],
        /// In the file, in bytes.
        offset: u64,
        /// Bytes that come into the file.
        unencoded_file_len: u64,
        /// Bytes of the whole extent, decoded.
        unencoded_len: u64,
        /// Where in the decoded extent the file's bytes begin.
        unencoded_offset: u64,
        /// Of [`compression`]; absent as none.
        compression: Option<u32>,
        /// 0, or absent: none.
        encryption: Option<u32>,
        /// The extent, encoded.
        data: &'a [u8],
    },
}

impl<'a> Command<'a> {
    /// Which command it is.
    pub fn kind(&self) -> Kind {
        match self {
            Command::Subvol { .. } => Kind::Subvol,
            Command::Snapshot { .. } => Kind::Snapshot,
            Command::Mkfile { .. } => Kind::Mkfile,
            Command::Mkdir { .. } => Kind::Mkdir,
            Command::Mknod { .. } => Kind::Mknod,
            Command::Mkfifo { .. } => Kind::Mkfifo,
            Command::Mksock { .. } => Kind::Mksock,
            Command::Symlink { .. } => Kind::Symlink,
            Command::Rename { .. } => Kind::Rename,
            Command::Link { .. } => Kind::Link,
            Command::Unlink { .. } => Kind::Unlink,
            Command::Rmdir { .. } => Kind::Rmdir,
            Command::SetXattr { .. } => Kind::SetXattr,
            Command::RemoveXattr { .. } => Kind::RemoveXattr,
            Command::Write { .. } => Kind::Write,
            Command::Clone { .. } => Kind::Clone,
            Command::Truncate { .. } => Kind::Truncate,
            Command::Chmod { .. } => Kind::Chmod,
            Command::Chown { .. } => Kind::Chown,
            Command::Utimes { .. } => Kind::Utimes,
            Command::End => Kind::End,
            Command::UpdateExtent { .. } => Kind::UpdateExtent,
            Command::Fallocate { .. } => Kind::Fallocate,
            Command::Fileattr { .. } => Kind::Fileattr,
            Command::EncodedWrite { .. } => Kind::EncodedWrite,
        }
    }

    /// The path that the command works on; `None` for [`Command::End`].
    pub fn path(&self) -> Option<&'a [u8]> {
        match self {
            Command::End => None,
            Command::Subvol { path, .. }
            | Command::Snapshot { path, .. }
            | Command::Mkfile { path, .. }
            | Command::Mkdir { path, .. }
            | Command::Mknod { path, .. }
            | Command::Mkfifo { path, .. }
            | Command::Mksock { path, .. }
            | Command::Symlink { path, .. }
            | Command::Rename { path, .. }
            | Command::Link { path, .. }
            | Command::Unlink { path }
            | Command::Rmdir { path }
            | Command::SetXattr { path, .. }
            | Command::RemoveXattr { path, .. }
            | Command::Write { path, .. }
            | Command::Clone { path, .. }
            | Command::Truncate { path, .. }
            | Command::Chmod { path, .. }
            | Command::Chown { path, .. }
            | Command::Utimes { path, .. }
            | Command::UpdateExtent { path, .. }
            | Command::Fallocate { path, .. }
            | Command::Fileattr { path, .. }
            | Command::EncodedWrite { path, .. } => Some(path),
        }
    }
}
