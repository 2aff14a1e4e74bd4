//! The bytes of items in memory.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};

use bytes::{Bytes, BytesMut};

/// The bytes of an item in memory, shared and immutable: a buffer of its own, or a part of one that
/// items share ([`ItemBytes::beside_others`], [`Packer`]).
#[derive(Clone, PartialEq, Eq)]
pub struct ItemBytes(Bytes);

/// Size of a buffer that items share: room for the items of a dozen new files. The last item that
/// is left of a buffer keeps all of it in memory, so buffers are small.
const SHARED_BYTES: usize = 4 << 10;

thread_local! {
    /// Room for the next items of this thread.
    static ROOM: RefCell<BytesMut> = RefCell::default();
}

impl ItemBytes {
    /// An item of these parts, in one buffer with the items that this thread made before. Most
    /// such items need no allocation, and those of one operation lie side by side. The memory of an
    /// item that is replaced stays until all items of its buffer are gone, so this is for new
    /// items, which are seldom replaced before the commit.
    pub fn beside_others(parts: &[&[u8]]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        ROOM.with_borrow_mut(|room| {
            if room.capacity() < len {
                *room = BytesMut::with_capacity(SHARED_BYTES.max(len));
            }
            for part in parts {
                room.extend_from_slice(part);
            }
            Self(room.split().freeze())
        })
    }
}

impl Deref for ItemBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ItemBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ItemBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl From<&[u8]> for ItemBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}
impl From<Vec<u8>> for ItemBytes {
    fn from(bytes: Vec<u8>) -> Self {
        // `Bytes` keeps a vector's spare capacity.
        Self(bytes.into_boxed_slice().into())
    }
}
impl<const N: usize> From<[u8; N]> for ItemBytes {
    fn from(bytes: [u8; N]) -> Self {
        bytes[..].into()
    }
}

/// Puts the bytes of many items into one buffer: one allocation for all of them. The buffer stays
/// until the last of them goes, so they should be of one transaction.
#[derive(Debug, Default)]
pub struct Packer {
    bytes: Vec<u8>,
}

impl Packer {
    /// Adds an item of these parts. Where its bytes lie: for [`Packed::item`].
    pub fn add(&mut self, parts: &[&[u8]]) -> Range<usize> {
        let start = self.bytes.len();
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        start..self.bytes.len()
    }

    /// Bytes of all items so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of an item that was added, to be corrected.
    pub fn item_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// Forgets what was added when there were `len` bytes already.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// The buffer is complete.
    pub fn finish(self) -> Packed {
        Packed(self.bytes.into_boxed_slice().into())
    }
}

/// The buffer of a [`Packer`].
#[derive(Debug)]
pub struct Packed(Bytes);

impl Packed {
    /// The item that was added as this range.
    pub fn item(&self, range: Range<usize>) -> ItemBytes {
        ItemBytes(self.0.slice(range))
    }
}
