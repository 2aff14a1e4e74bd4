//! Attributes of all forms, and the parent pointers among them.

use std::collections::BTreeSet;

use xfs_format::attr::{
    ACL_DEFAULT, ACL_FILE, AclEntry, AttrLeafBlock, AttrRemoteBlock, AttrValueView, ParentPointer, acl_entries,
    acl_tag, attr_flags, remote_blocks, shortform_entries,
};
use xfs_format::da::AttrNodeBlock;
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::{DaBlock, Expect, Inode};

use crate::finding::{FindingId, Site};
use crate::fork::Mapped;
use crate::hash_tree::{HashTree, Node, Place};
use crate::scan::{Scan, mark};
use crate::volume::{count, index};

impl Scan<'_> {
    pub(crate) fn attributes(&mut self, site: Site, inode: &Inode, map: &Mapped) {
        if let Some(Fork::Local(bytes)) = inode.fork(ForkKind::Attr) {
            for attr in shortform_entries(bytes) {
                self.parent_pointer(attr.flags, attr.name, attr.value);
                self.unfinished(site, attr.flags, attr.name);
                if is_access_list(attr.flags, attr.name) {
                    self.access_list(site, attr.value);
                }
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
                AttrValueView::Local(value) => {
                    self.parent_pointer(entry.flags, entry.name, value);
                    if is_access_list(entry.flags, entry.name) {
                        self.access_list(site, value);
                    }
                }
                AttrValueView::Remote { block, len_bytes } if entry.flags & attr_flags::INCOMPLETE == 0 => {
                    let is_list = is_access_list(entry.flags, entry.name);
                    let mut value = is_list.then(Vec::new);
                    let is_whole = self.remote(site, map, block, len_bytes, value.as_mut());
                    if let Some(mut value) = value.filter(|_| is_whole) {
                        value.truncate(index(len_bytes));
                        self.access_list(site, &value);
                    }
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

    /// Judges the value of an access list.
    fn access_list(&mut self, site: Site, value: &[u8]) {
        let fault = match acl_entries(value) {
            Some(entries) => access_list_fault(entries),
            None => Some(format!("has {} bytes, fewer than its count says", value.len())),
        };
        if let Some(fault) = fault {
            self.sink
                .add(FindingId::AclInvalid, site, format!("the access list {fault}"));
        }
    }

    /// Reads a value that has blocks of its own. Is it whole?
    fn remote(
        &mut self,
        site: Site,
        map: &Mapped,
        first: DaBlock,
        len_bytes: u32,
        mut value: Option<&mut Vec<u8>>,
    ) -> bool {
        let vol = self.vol;
        let mut found = 0_u64;
        for step in 0..remote_blocks(len_bytes, &vol.geometry) {
            let at = DaBlock(first.get().saturating_add(step));
            let Some((bytes, block)) = self.read_mapped(site, map, at, 1, FindingId::AttrValue) else {
                return false;
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
                    if let Some(value) = &mut value {
                        value.extend_from_slice(part.part());
                    }
                }
                Err(fault) => {
                    self.sink.corrupt(&fault, site, FindingId::AttrValue);
                    return false;
                }
            }
        }
        if vol.geometry.is_v5() && found != u64::from(len_bytes) {
            self.sink.add(
                FindingId::AttrValue,
                site,
                format!("valuelen is {len_bytes}, the blocks hold {found} bytes"),
            );
            return false;
        }
        true
    }
}

fn is_access_list(flags: u8, name: &[u8]) -> bool {
    flags & (attr_flags::NAMESPACE_MASK | attr_flags::INCOMPLETE) == attr_flags::ROOT
        && (name == ACL_FILE || name == ACL_DEFAULT)
}

/// What is wrong with the entries of an access list.
fn access_list_fault(entries: &[AclEntry]) -> Option<String> {
    const PERM_MAX: u16 = 7;
    let mut numbered = BTreeSet::new();
    let (mut owners, mut groups, mut masks, mut others) = (0_u32, 0_u32, 0_u32, 0_u32);
    for (slot, entry) in entries.iter().enumerate() {
        let (tag, id, perm) = (entry.ae_tag.get(), entry.ae_id.get(), entry.ae_perm.get());
        let sum = match tag {
            acl_tag::USER | acl_tag::GROUP if numbered.insert((tag, id)) => None,
            acl_tag::USER | acl_tag::GROUP => return Some(format!("names {id} twice, in entry {slot}")),
            acl_tag::USER_OBJ => Some(&mut owners),
            acl_tag::GROUP_OBJ => Some(&mut groups),
            acl_tag::MASK => Some(&mut masks),
            acl_tag::OTHER => Some(&mut others),
            _ => return Some(format!("has tag {tag:#x} in entry {slot}")),
        };
        if let Some(sum) = sum {
            *sum = sum.saturating_add(1);
        }
        if perm > PERM_MAX {
            return Some(format!("has permissions {perm:#x} in entry {slot}"));
        }
    }
    let sums = [("the owner", owners), ("the group", groups), ("others", others)];
    if let Some((what, sum)) = sums.iter().find(|(_, sum)| *sum != 1) {
        return Some(format!("has {sum} entries for {what}, expected 1"));
    }
    let is_needed = !numbered.is_empty();
    (masks > 1 || is_needed && masks == 0).then(|| format!("has {masks} masks, expected 1"))
}
