//! The ioctl that clones trees.

use core::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{READ, Token, WRITE, number};

/// Clones the tree at the lent directory to a new name in this one, call by call: [`CloneTree`].
pub const CLONE_TREE: u32 = number(READ | WRITE, 7, size_of::<CloneTree>());

/// What a [`CloneTree`] call does.
pub mod op {
    /// Begins. The answer's token names the walk.
    pub const BEGIN: u32 = 0;
    /// Goes on for some milliseconds.
    pub const GO_ON: u32 = 1;
    /// Ends before all is done. What was cloned stays.
    pub const END: u32 = 2;
}

/// How far a walk is.
pub mod state {
    /// Go on. If there is an error, the entry at the path is left out.
    pub const MORE: u32 = 0;
    /// The tree is cloned.
    pub const DONE: u32 = 1;
    /// It cannot go on.
    pub const FAILED: u32 = 2;
}

/// Bytes of the path that a call answers with: of a longer one, its end.
pub const PATH_BYTES: usize = 4096;

/// Argument of [`CLONE_TREE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CloneTree {
    /// In, to begin: the source's directory. Out, and in later calls: the walk.
    pub token: Token,
    /// In: one of [`op`].
    pub op: U32,
    /// Out: one of [`state`].
    pub state: U32,
    /// In, to begin: bytes of the name.
    pub name_bytes: U32,
    /// Out: why the entry at the path is not cloned, or the walk failed; 0: nothing to tell.
    pub errno: U32,
    /// Out: names made so far.
    pub entries: U64,
    /// Out: content of the files among them.
    pub bytes: U64,
    /// Out.
    pub path_bytes: U32,
    /// Zero.
    pub pad: U32,
    /// The name; the rest is zeros.
    pub name: [u8; 256],
    /// Out: from the source's directory.
    pub path: [u8; PATH_BYTES],
}
const _: () = assert!(size_of::<CloneTree>() == 56 + 256 + PATH_BYTES && offset_of!(CloneTree, entries) == 32);

impl CloneTree {
    pub(crate) fn put_path(&mut self, path: &[u8]) {
        let end = path.get(path.len().saturating_sub(PATH_BYTES)..).unwrap_or_default();
        self.path = [0; PATH_BYTES];
        if let Some(room) = self.path.get_mut(..end.len()) {
            room.copy_from_slice(end);
            self.path_bytes = (end.len() as u32).into();
        }
    }

    /// The path of an answer.
    pub fn path(&self) -> &[u8] {
        let len = usize::try_from(self.path_bytes.get()).unwrap_or(PATH_BYTES);
        self.path.get(..len).unwrap_or_default()
    }
}
