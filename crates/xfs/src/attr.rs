//! Extended attributes in all their forms, and access lists in the format's own encoding.

use cowshed_vfs::acl;
use cowshed_vfs::xattr::Namespace;
use xfs_format::Owner;
use xfs_format::attr::{
    ACL_DEFAULT, ACL_FILE, AttrEntryView, AttrLeafBlock, AttrRemoteBlock, AttrValueView, acl_entries, acl_tag,
    attr_flags, remote_blocks, shortform_entries,
};
use xfs_format::da::name_hash;
use xfs_format::inode::{Fork, ForkKind};

use crate::error::Result;
use crate::inode::Object;
use crate::volume::{AttrIndexBlock, Block, Volume};

fn read<B: Block>(volume: &Volume, inode: &Object, block: u64) -> Result<B> {
    let parts = inode.parts(volume, ForkKind::Attr, block, 1)?;
    volume.block_of_parts(&parts, Owner::Inode(inode.ino))
}

/// The first leaf that may hold a hash, and its block; `None` for a fork without blocks.
fn leaf_of(volume: &Volume, inode: &Object, hash: u32) -> Result<Option<(u64, AttrLeafBlock)>> {
    if inode.extent_from(volume, ForkKind::Attr, 0)?.is_none() {
        return Ok(None);
    }
    let (mut at, mut level) = (0, u8::MAX);
    loop {
        let node = match read(volume, inode, at)? {
            AttrIndexBlock::Leaf(leaf) => return Ok(Some((at, leaf))),
            AttrIndexBlock::Node(node) => node,
        };
        if node.level() >= level {
            return Err(inode.damaged("attribute nodes"));
        }
        level = node.level();
        let Some(slot) = node.child_slot(hash) else {
            return Ok(None);
        };
        at = node.entries().get(slot).map_or(0, |child| child.before.get()).into();
    }
}

/// Visits attributes of leaves from a hash on, until `visit` says true.
fn leaves(
    volume: &Volume,
    inode: &Object,
    hash: u32,
    visit: &mut dyn FnMut(&AttrEntryView<'_>) -> Result<bool>,
) -> Result<()> {
    let Some((first, mut leaf)) = leaf_of(volume, inode, hash)? else {
        return Ok(());
    };
    let mut at = first;
    loop {
        for entry in leaf.entries() {
            if visit(&entry)? {
                return Ok(());
            }
        }
        let next = u64::from(leaf.siblings().1.get());
        if next == 0 {
            return Ok(());
        }
        leaf = match read(volume, inode, next)? {
            // As each leaf names the one before it, a circle would lead back to the first one.
            AttrIndexBlock::Leaf(leaf) if u64::from(leaf.siblings().0.get()) == at && next != first => leaf,
            _ => return Err(inode.damaged("attribute leaves")),
        };
        at = next;
    }
}

fn value_of(volume: &Volume, inode: &Object, value: &AttrValueView<'_>) -> Result<Vec<u8>> {
    let (block, len) = match *value {
        AttrValueView::Local(value) => return Ok(value.to_vec()),
        AttrValueView::Remote { block, len_bytes } => (u64::from(block.get()), len_bytes),
    };
    let mut value = Vec::new();
    for n in 0..u64::from(remote_blocks(len, volume.geometry())) {
        let part: AttrRemoteBlock = read(volume, inode, block + n)?;
        if part.offset_bytes().is_some_and(|offset| offset as usize != value.len()) {
            return Err(inode.damaged("remote attribute value"));
        }
        value.extend_from_slice(part.part());
    }
    if value.len() < len as usize {
        return Err(inode.damaged("remote attribute value"));
    }
    value.truncate(len as usize);
    Ok(value)
}

fn is_shown(flags: u8) -> bool {
    flags & (attr_flags::PARENT | attr_flags::INCOMPLETE) == 0
}

/// An attribute by namespace bits and name.
fn raw(volume: &Volume, inode: &Object, namespace: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let is_it =
        |flags: u8, found: &[u8]| is_shown(flags) && flags & attr_flags::NAMESPACE_MASK == namespace && found == name;
    match inode.fork(ForkKind::Attr) {
        None => Ok(None),
        Some(Fork::Local(bytes)) => {
            let found = shortform_entries(bytes).find(|attr| is_it(attr.flags, attr.name));
            Ok(found.map(|attr| attr.value.to_vec()))
        }
        Some(_) => {
            let hash = name_hash(name);
            let mut found = None;
            leaves(volume, inode, hash, &mut |entry| {
                if entry.hash == hash && is_it(entry.flags, entry.name) {
                    found = Some(value_of(volume, inode, &entry.value)?);
                }
                Ok(found.is_some() || entry.hash > hash)
            })?;
            Ok(found)
        }
    }
}

/// The value of an attribute by its full name. `None` where there is none.
pub(crate) fn get(volume: &Volume, inode: &Object, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let behind = |prefix: &[u8]| name.get(prefix.len()..).unwrap_or_default();
    let list = |stored| -> Result<Option<Vec<u8>>> {
        match raw(volume, inode, attr_flags::ROOT, stored)? {
            None => Ok(None),
            Some(value) => acl_value(&value).map(Some).ok_or_else(|| inode.damaged("access list")),
        }
    };
    match Namespace::of(name)? {
        Namespace::User => raw(volume, inode, 0, behind(b"user.")),
        Namespace::Trusted => raw(volume, inode, attr_flags::ROOT, behind(b"trusted.")),
        Namespace::Security => raw(volume, inode, attr_flags::SECURE, behind(b"security.")),
        Namespace::AccessAcl => list(ACL_FILE),
        Namespace::DefaultAcl => list(ACL_DEFAULT),
        Namespace::Property => Err(cowshed_vfs::Error::NotSupported.into()),
    }
}

/// Visits the full names of all attributes.
pub(crate) fn names(volume: &Volume, inode: &Object, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut one = |flags: u8, name: &[u8]| {
        if !is_shown(flags) {
            return;
        }
        let prefix: &[u8] = match flags & attr_flags::NAMESPACE_MASK {
            attr_flags::ROOT => b"trusted.",
            attr_flags::SECURE => b"security.",
            _ => b"user.",
        };
        if flags & attr_flags::ROOT != 0 && name == ACL_FILE {
            visit(acl::ACCESS_NAME);
        }
        if flags & attr_flags::ROOT != 0 && name == ACL_DEFAULT {
            visit(acl::DEFAULT_NAME);
        }
        visit(&[prefix, name].concat());
    };
    match inode.fork(ForkKind::Attr) {
        None => Ok(()),
        Some(Fork::Local(bytes)) => {
            shortform_entries(bytes).for_each(|attr| one(attr.flags, attr.name));
            Ok(())
        }
        Some(_) => leaves(volume, inode, 0, &mut |entry| {
            one(entry.flags, entry.name);
            Ok(false)
        }),
    }
}

/// An access list as Linux shows it. `None` where the bytes are no list.
fn acl_value(stored: &[u8]) -> Option<Vec<u8>> {
    const VERSION: u32 = 2;
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in acl_entries(stored)? {
        let tag = entry.ae_tag.get();
        let id = if matches!(tag, acl_tag::USER | acl_tag::GROUP) {
            entry.ae_id.get()
        } else {
            u32::MAX
        };
        value.extend(u16::try_from(tag).ok()?.to_le_bytes());
        value.extend(entry.ae_perm.get().to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Some(value)
}
