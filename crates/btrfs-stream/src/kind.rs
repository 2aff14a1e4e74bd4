//! Numbers and names of versions, commands and attributes.

use std::fmt;

/// Version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Since Linux 3.6.
    V1,
    /// Since Linux 6.0.
    V2,
}

impl Version {
    /// As the stream's header has it.
    pub fn number(self) -> u32 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }

    /// The version with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Version::V1),
            2 => Some(Version::V2),
            _ => None,
        }
    }
}

/// Declares an enum of numbers with names, and the version since which each is known.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $number:literal, $text:literal, $since:ident;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        impl $name {
            /// All, by number.
            pub const ALL: &[$name] = &[$($name::$item),*];

            /// As the stream has it.
            pub fn number(self) -> u16 {
                match self { $($name::$item => $number,)* }
            }

            /// The one with this number.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some($name::$item),)* _ => None }
            }

            /// As `btrfs receive --dump` and the format's description call it.
            pub fn name(self) -> &'static str {
                match self { $($name::$item => $text,)* }
            }

            /// The first version that has it.
            pub fn since(self) -> Version {
                match self { $($name::$item => Version::$since,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

numbered! {
    /// Kind of a command.
    Kind {
        /// [`crate::Command::Subvol`]
        Subvol = 1, "subvol", V1;
        /// [`crate::Command::Snapshot`]
        Snapshot = 2, "snapshot", V1;
        /// [`crate::Command::Mkfile`]
        Mkfile = 3, "mkfile", V1;
        /// [`crate::Command::Mkdir`]
        Mkdir = 4, "mkdir", V1;
        /// [`crate::Command::Mknod`]
        Mknod = 5, "mknod", V1;
        /// [`crate::Command::Mkfifo`]
        Mkfifo = 6, "mkfifo", V1;
        /// [`crate::Command::Mksock`]
        Mksock = 7, "mksock", V1;
        /// [`crate::Command::Symlink`]
        Symlink = 8, "symlink", V1;
        /// [`crate::Command::Rename`]
        Rename = 9, "rename", V1;
        /// [`crate::Command::Link`]
        Link = 10, "link", V1;
        /// [`crate::Command::Unlink`]
        Unlink = 11, "unlink", V1;
        /// [`crate::Command::Rmdir`]
        Rmdir = 12, "rmdir", V1;
        /// [`crate::Command::SetXattr`]
        SetXattr = 13, "set_xattr", V1;
        /// [`crate::Command::RemoveXattr`]
        RemoveXattr = 14, "remove_xattr", V1;
        /// [`crate::Command::Write`]
        Write = 15, "write", V1;
        /// [`crate::Command::Clone`]
        Clone = 16, "clone", V1;
        /// [`crate::Command::Truncate`]
        Truncate = 17, "truncate", V1;
        /// [`crate::Command::Chmod`]
        Chmod = 18, "chmod", V1;
        /// [`crate::Command::Chown`]
        Chown = 19, "chown", V1;
        /// [`crate::Command::Utimes`]
        Utimes = 20, "utimes", V1;
        /// [`crate::Command::End`]
        End = 21, "end", V1;
        /// [`crate::Command::UpdateExtent`]
        UpdateExtent = 22, "update_extent", V1;
        /// [`crate::Command::Fallocate`]
        Fallocate = 23, "fallocate", V2;
        /// [`crate::Command::Fileattr`]
        Fileattr = 24, "fileattr", V2;
        /// [`crate::Command::EncodedWrite`]
        EncodedWrite = 25, "encoded_write", V2;
    }
}

numbered! {
    /// Kind of an attribute of a command.
    Attribute {
        /// Of a subvolume, 16 bytes.
        Uuid = 1, "uuid", V1;
        /// Transaction of the last change of a subvolume.
        Ctransid = 2, "ctransid", V1;
        /// Inode number on the sending side.
        Ino = 3, "ino", V1;
        /// Bytes.
        Size = 4, "size", V1;
        /// Type and permission bits, as in `stat`.
        Mode = 5, "mode", V1;
        /// Number of a user.
        Uid = 6, "uid", V1;
        /// Number of a group.
        Gid = 7, "gid", V1;
        /// Number of a device.
        Rdev = 8, "rdev", V1;
        /// Time of the last change of the inode.
        Ctime = 9, "ctime", V1;
        /// Time of the last change of the contents.
        Mtime = 10, "mtime", V1;
        /// Time of the last access.
        Atime = 11, "atime", V1;
        /// Time of creation.
        Otime = 12, "otime", V1;
        /// Name of an extended attribute.
        XattrName = 13, "xattr_name", V1;
        /// Value of an extended attribute.
        XattrData = 14, "xattr_data", V1;
        /// What the command works on.
        Path = 15, "path", V1;
        /// New name.
        PathTo = 16, "path_to", V1;
        /// Existing name (link), or content (symlink).
        PathLink = 17, "path_link", V1;
        /// Bytes.
        FileOffset = 18, "file_offset", V1;
        /// Contents. In version 2 without a length: to the end of the command.
        Data = 19, "data", V1;
        /// Subvolume of the source.
        CloneUuid = 20, "clone_uuid", V1;
        /// Its transaction.
        CloneCtransid = 21, "clone_ctransid", V1;
        /// Source in that subvolume.
        ClonePath = 22, "clone_path", V1;
        /// Bytes in the source.
        CloneOffset = 23, "clone_offset", V1;
        /// Bytes.
        CloneLen = 24, "clone_len", V1;
        /// As in fallocate(2).
        FallocateMode = 25, "fallocate_mode", V2;
        /// Flags of the inode item.
        Fileattr = 26, "fileattr", V2;
        /// Bytes that the write adds to the file.
        UnencodedFileLen = 27, "unencoded_file_len", V2;
        /// Bytes of the whole extent, decoded.
        UnencodedLen = 28, "unencoded_len", V2;
        /// Where in the extent the file's bytes begin.
        UnencodedOffset = 29, "unencoded_offset", V2;
        /// Of [`crate::compression`].
        Compression = 30, "compression", V2;
        /// 0: none. No other is defined.
        Encryption = 31, "encryption", V2;
    }
}
