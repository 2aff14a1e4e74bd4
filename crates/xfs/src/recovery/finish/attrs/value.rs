//! Values in blocks of their own.

use xfs_format::attr::{AttrRemoteBlock, attr_flags, remote_blocks, remote_value_bytes};
use xfs_format::{DaBlock, Lsn};

use super::blocks::AttrFork;
use super::list::{Attr, Value};
use crate::error::Result;

impl AttrFork<'_, '_> {
    /// Adds an attribute whose value does not fit beside the name: first the name, not finished,
    /// then the value, then the name says where it is. So a crash between these steps leaves no
    /// name without a value.
    pub(super) fn add_with_blocks(&mut self, attr: &Attr, value: &[u8]) -> Result<()> {
        let len_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let entry = |flag: u8, block: DaBlock| Attr {
            flags: attr.flags | flag,
            name: attr.name.clone(),
            value: Value::Remote { block, len_bytes },
        };
        self.add(entry(attr_flags::INCOMPLETE, DaBlock(0)))?;
        let block = self.write_value(value)?;
        let done = entry(0, block);
        let (way, mut leaf) = self.find(&done)?;
        if let Some(place) = leaf.attrs.iter_mut().find(|other| other.is(&done)) {
            *place = done;
        }
        self.write_leaf(way.block, &leaf.attrs, leaf.siblings)
    }

    /// Writes a value to new blocks, and gives the first one. Values are not logged.
    fn write_value(&mut self, value: &[u8]) -> Result<DaBlock> {
        let geometry = self.geometry();
        let part_bytes = remote_value_bytes(&geometry);
        let blocks = remote_blocks(u32::try_from(value.len()).unwrap_or(u32::MAX), &geometry);
        let first = self.take(blocks)?;
        let parts = value.chunks(part_bytes as usize);
        for ((number, offset), part) in (first.get()..).zip((0..).step_by(part_bytes as usize)).zip(parts) {
            let daddr = self.place(DaBlock(number))?;
            let expect = self.expect(daddr);
            let bytes = AttrRemoteBlock::build(offset, part, &expect).ok_or_else(|| {
                let found = part.len();
                self.ags.disk.broken("part of a value", found, "one that fits")
            })?;
            let block = AttrRemoteBlock::seal(bytes, &expect, Lsn::NULL)?;
            self.ags.disk.write(daddr, block.bytes())?;
        }
        Ok(first)
    }

    /// Frees the blocks of a value. One that was not finished may have none.
    pub(super) fn free_value(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Remote { block, len_bytes } if block.get() != 0 => {
                let blocks = remote_blocks(*len_bytes, &self.geometry());
                self.shrink(*block, blocks)
            }
            Value::Remote { .. } | Value::Local(_) => Ok(()),
        }
    }
}
