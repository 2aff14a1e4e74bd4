//! Attributes of all forms, and the parent pointers among them.

use xfs_format::attr::{
    AttrLeafBlock, AttrRemoteBlock, AttrValueView, ParentPointer, attr_flags, remote_blocks, shortform_entries,
};
use xfs_format::da::AttrNodeBlock;
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::{DaBlock, Expect, Inode};

use crate::finding::{FindingId, Site};
use crate::fork::Mapped;
use crate::hash_tree::{HashTree, Node, Place};
use crate::scan::{Scan, mark};
use crate::volume::count;

impl Scan<'_> {
    pub(crate) fn attributes(&mut self, site: Site, inode: &Inode, map: &Mapped) {
        if let Some(Fork::Local(bytes)) = inode.fork(ForkKind::Attr) {
            for attr in shortform_entries(bytes) {
                self.parent_pointer(attr.flags, attr.name, attr.value);
                self.unfinished(site, attr.flags, attr.name);
            }
            return;
        }
        // A fork that lost its last attribute may be left without a block.
        if !map.is_whole || map.extents.is_empty() {
            return;
        }
        let tree = HashTree {
            site,
            map,
            root: DaBlock(0),
            blocks: 1,
            ids: (FindingId::AttrInvalid, FindingId::AttrHash),
            node: |bytes, expect| {
                let node = AttrNodeBlock::verify(bytes, expect)?;
                Ok(Node {
                    level: node.level(),
                    entries: node.entries().to_vec(),
                    siblings: node.siblings(),
                })
            },
        };
        let mut before = 0;
        self.walk_hashes(&tree, &mut |scan, site, bytes, expect| {
            scan.attr_leaf(site, map, bytes, expect, &mut before)
        });
    }

    fn attr_leaf(
        &mut self,
        site: Site,
        map: &Mapped,
        bytes: Vec<u8>,
        expect: &Expect<'_>,
        before: &mut u32,
    ) -> Option<Place> {
        let leaf = match AttrLeafBlock::verify(bytes, expect) {
            Ok(leaf) => leaf,
            Err(fault) => {
                self.sink.corrupt(&fault, site, FindingId::AttrInvalid);
                return None;
            }
        };
        let mut last = None;
        for entry in leaf.entries() {
            if last.is_none() && entry.hash < *before {
                let message = format!(
                    "the first hash {:#x} is below {before:#x} of the leaf before",
                    entry.hash
                );
                self.sink.add(FindingId::AttrHash, site, message);
            }
            last = Some(entry.hash);
            self.unfinished(site, entry.flags, entry.name);
            match entry.value {
                AttrValueView::Local(value) => self.parent_pointer(entry.flags, entry.name, value),
                AttrValueView::Remote { block, len_bytes } if entry.flags & attr_flags::INCOMPLETE == 0 => {
                    self.remote(site, map, block, len_bytes);
                }
                AttrValueView::Remote { .. } => {}
            }
        }
        *before = last.unwrap_or(*before);
        Some((last, leaf.siblings()))
    }

    fn unfinished(&mut self, site: Site, flags: u8, name: &[u8]) {
        if flags & attr_flags::INCOMPLETE != 0 {
            let message = format!("attribute {:?} is not finished", String::from_utf8_lossy(name));
            self.sink.add(FindingId::AttrInvalid, site, message);
        }
    }

    fn parent_pointer(&mut self, flags: u8, name: &[u8], value: &[u8]) {
        if flags & attr_flags::PARENT == 0 {
            return;
        }
        if let Some(parent) = ParentPointer::read(value) {
            let mark = mark(parent.ino, parent.generation, name);
            self.info.balance = self.info.balance.wrapping_sub(mark);
        }
    }

    /// Reads a value that has blocks of its own.
    fn remote(&mut self, site: Site, map: &Mapped, first: DaBlock, len_bytes: u32) {
        let vol = self.vol;
        let mut found = 0_u64;
        for step in 0..remote_blocks(len_bytes, &vol.geometry) {
            let at = DaBlock(first.get().saturating_add(step));
            let Some((bytes, block)) = self.read_mapped(site, map, at, 1, FindingId::AttrValue) else {
                return;
            };
            let site = site.with_block(&vol.geometry, block);
            let expect = vol.expect_inode(block, site.inode.unwrap_or_default());
            match AttrRemoteBlock::verify(bytes, &expect) {
                Ok(part) => {
                    if let Some(offset) = part.offset_bytes().filter(|offset| u64::from(*offset) != found) {
                        self.sink.add(
                            FindingId::AttrValue,
                            site,
                            format!("offset is {offset}, expected {found}"),
                        );
                    }
                    found = found.saturating_add(count(part.part().len()));
                }
                Err(fault) => return self.sink.corrupt(&fault, site, FindingId::AttrValue),
            }
        }
        if vol.geometry.is_v5() && found != u64::from(len_bytes) {
            self.sink.add(
                FindingId::AttrValue,
                site,
                format!("valuelen is {len_bytes}, the blocks hold {found} bytes"),
            );
        }
    }
}
