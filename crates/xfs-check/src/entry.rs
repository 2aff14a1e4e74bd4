//! What is kept of every entry until links are judged.

use xfs_format::Ino;
use xfs_format::dir::FileType;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An entry of a directory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Entry {
    child: u64,
    dir: u64,
    /// The hash of directory and name, where there are parent pointers.
    pub(crate) mark: u64,
    /// Where it lies in the directory, in units of 8 bytes.
    pub(crate) position: u32,
    /// [`Entry::NO_TYPE`] where the volume keeps none.
    file_type: u32,
}

impl Entry {
    const NO_TYPE: u32 = u32::MAX;

    pub(crate) fn new(child: Ino, dir: Ino, mark: u64, position: u32, file_type: Option<FileType>) -> Self {
        Self {
            child: child.get(),
            dir: dir.get(),
            mark,
            position,
            file_type: file_type.map_or(Self::NO_TYPE, |file_type| file_type.to_raw().into()),
        }
    }
    pub(crate) fn child(&self) -> Ino {
        Ino(self.child)
    }
    pub(crate) fn dir(&self) -> Ino {
        Ino(self.dir)
    }
    pub(crate) fn file_type(&self) -> Option<FileType> {
        u8::try_from(self.file_type).ok().and_then(FileType::from_raw)
    }
}
