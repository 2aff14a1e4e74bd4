//! What open groups hold.

use std::collections::BTreeMap;

use crate::content::{BLOCK_BYTES, Block, Content};
use crate::id::Id;

/// What a group holds of one file: blocks as they were when the group first wrote into them, and
/// what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Staged {
    pub blocks: BTreeMap<u64, Box<Block>>,
    /// The file is at least so long afterwards.
    pub end: u64,
}

/// A group that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub files: BTreeMap<Id, Staged>,
    /// The file of its handle, if it is a handle's.
    pub handle: Option<Id>,
}

impl Group {
    pub fn holds(&self, id: Id) -> bool {
        self.files.contains_key(&id) || self.handle == Some(id)
    }
}

impl Staged {
    pub fn write(&mut self, content: &Content, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for number in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let start = number * BLOCK_BYTES;
            let block = self
                .blocks
                .entry(number)
                .or_insert_with(|| Box::new(content.block(number)));
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
            block[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        self.end = self.end.max(end);
    }

    pub fn happen(&self, content: &mut Content) {
        let size = content.size_bytes.max(self.end);
        content.size_bytes = size;
        for (number, block) in &self.blocks {
            let start = number * BLOCK_BYTES;
            let len = size.saturating_sub(start).min(BLOCK_BYTES) as usize;
            content.write(start, &block[..len]);
        }
    }
}
