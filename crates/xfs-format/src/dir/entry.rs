//! An entry, wherever it lies.

use crate::ids::Ino;
use crate::inode::mode;

/// The type of a file, as entries hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileType {
    /// Not known.
    Unknown,
    /// A file.
    Regular,
    /// A directory.
    Dir,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symlink.
    Symlink,
    /// A whiteout of an overlay.
    Whiteout,
}

impl FileType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Unknown,
        Self::Regular,
        Self::Dir,
        Self::Char,
        Self::Block,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
        Self::Whiteout,
    ];

    /// From the number. `None` for one that the format does not define.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.get(usize::from(raw)).copied()
    }
    /// The number.
    pub fn to_raw(self) -> u8 {
        let at = Self::ALL.iter().position(|ty| *ty == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or_default()
    }
    /// Of a type of [`mode`].
    pub fn from_mode(file_type: u16) -> Self {
        match file_type & mode::TYPE_MASK {
            mode::REGULAR => Self::Regular,
            mode::DIR => Self::Dir,
            mode::CHAR => Self::Char,
            mode::BLOCK => Self::Block,
            mode::FIFO => Self::Fifo,
            mode::SOCKET => Self::Socket,
            mode::SYMLINK => Self::Symlink,
            _ => Self::Unknown,
        }
    }
}

/// An entry of a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Where it lies, in bytes from the start of its block.
    pub offset_bytes: u32,
    /// The inode.
    pub ino: Ino,
    /// The name.
    pub name: &'a [u8],
    /// The type of the inode, on volumes that keep it.
    pub file_type: Option<FileType>,
}
