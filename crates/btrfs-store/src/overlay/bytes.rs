//! The bytes of items in memory.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The bytes of an item in memory, shared and immutable: a buffer of its own, or a part of one that
/// the items of a batch share ([`Packer`]).
#[derive(Clone)]
pub struct ItemBytes {
    buffer: Arc<[u8]>,
    start: u32,
    len: u32,
}

impl Deref for ItemBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.len as usize]
    }
}

impl AsRef<[u8]> for ItemBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for ItemBytes {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}
impl Eq for ItemBytes {}

impl fmt::Debug for ItemBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl ItemBytes {
    fn part(buffer: &Arc<[u8]>, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= buffer.len(),
            "a part of the buffer"
        );
        let short = |n| u32::try_from(n).expect("items and batches are shorter than 4 GiB");
        Self {
            start: short(range.start),
            len: short(range.len()),
            buffer: buffer.clone(),
        }
    }
}

impl From<Arc<[u8]>> for ItemBytes {
    fn from(buffer: Arc<[u8]>) -> Self {
        Self::part(&buffer, 0..buffer.len())
    }
}
impl From<&[u8]> for ItemBytes {
    fn from(bytes: &[u8]) -> Self {
        Arc::<[u8]>::from(bytes).into()
    }
}
impl From<Vec<u8>> for ItemBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Arc::<[u8]>::from(bytes).into()
    }
}
impl<const N: usize> From<[u8; N]> for ItemBytes {
    fn from(bytes: [u8; N]) -> Self {
        Arc::<[u8]>::from(bytes).into()
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
        Packed(self.bytes.into())
    }
}

/// The buffer of a [`Packer`].
#[derive(Debug)]
pub struct Packed(Arc<[u8]>);

impl Packed {
    /// The item that was added as this range.
    pub fn item(&self, range: Range<usize>) -> ItemBytes {
        ItemBytes::part(&self.0, range)
    }
}
