//! The verifier: everything a block claims is checked here, once, so that other code need not.
//!
//! It refuses what Linux refuses to read or write, and nothing that Linux ever wrote; where old
//! kernels left bytes uninitialised, the check says so and leaves them. The good case allocates
//! nothing: this runs on every block read and on every block written. The rules are described in
//! `docs/format/`.

mod extent;
mod file;
mod inode;
mod item;
mod names;
mod root;
mod space;
#[cfg(test)]
mod tests;
mod volume;

use zerocopy::FromBytes;

use crate::corrupt::{Corrupt, CorruptKind, Site};
use crate::csum::{CSUM_FIELD_BYTES, ChecksumType};
use crate::features::header_flags;
use crate::header::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KeyPtr, LEVEL_MAX};
use crate::ids::{Generation, LogicalAddr, TreeId, Uuid};
use crate::key::{Key, KeyType};
use cowshed_layout::{Rule, hex, len_u64};
pub(crate) use inode::{FILE_TYPES, S_IFDIR, S_IFMT, S_IFREG};
use item::{Ctx, Item, is_shareable};

/// What the reader of a block already knows about it. `None` where it does not.
#[derive(Clone, Debug)]
pub struct BlockExpect {
    /// The logical address that led to the block.
    pub addr: LogicalAddr,
    /// The uuid that the volume's tree blocks carry: [`crate::Superblock::metadata_fsid`].
    pub fsid: Uuid,
    /// The volume's checksum type.
    pub csum_type: ChecksumType,
    /// The volume's sector size.
    pub sectorsize_bytes: u32,
    /// The level, one below the parent's.
    pub level: Option<u8>,
    /// The generation, as the parent states it.
    pub generation: Option<Generation>,
    /// The first key, as the parent states it.
    pub first_key: Option<Key>,
    /// The tree that is being walked; shared blocks may be owned by another subvolume.
    pub tree: Option<TreeId>,
}

/// Nodes are 4 to 64 KiB; more must not come in, so that offsets fit 32 bits.
const NODESIZE_BYTES_MAX: usize = 65536;

/// A chunk from outside of a tree: the superblock's array.
pub(crate) fn check_stray_chunk(key: Key, data: &[u8], sectorsize_bytes: u32) -> Result<(), CorruptKind> {
    let ctx = Ctx {
        sectorsize_bytes: sectorsize_bytes.into(),
        nodesize_bytes: 0,
        csum_bytes: 0,
        generation: u64::MAX,
        owner: TreeId::CHUNK,
    };
    let item = Item { key, data, ctx: &ctx };
    volume::check_chunk(&item, data)
}

/// Compares the stored checksum with the computed one.
pub(crate) fn check_csum(bytes: &[u8], expect: &BlockExpect) -> Result<(), Corrupt> {
    let site = Site {
        tree: expect.tree,
        addr: expect.addr,
        level: None,
        slot: None,
    };
    let Some((stored, body)) = bytes.split_at_checked(CSUM_FIELD_BYTES) else {
        return Err(Corrupt {
            site,
            kind: CorruptKind::Short { found: bytes.len() },
        });
    };
    let computed = expect.csum_type.compute(body);
    let used = expect.csum_type.size_bytes();
    if stored.get(..used) != computed.get(..used) {
        let kind = CorruptKind::Csum {
            stored: hex(stored.get(..used).unwrap_or_default()),
            computed: hex(computed.get(..used).unwrap_or_default()),
        };
        return Err(Corrupt { site, kind });
    }
    Ok(())
}

#[cold]
fn mismatch(field: &'static str, found: impl ToString, expected: impl ToString) -> CorruptKind {
    CorruptKind::Mismatch {
        field,
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

fn header_field(field: &'static str, found: u64, rule: Rule) -> Result<(), CorruptKind> {
    if rule.holds(found) {
        Ok(())
    } else {
        Err(CorruptKind::Field { field, found, rule })
    }
}

/// Checks identity, order, bounds and items.
pub(crate) fn check_block(bytes: &[u8], expect: &BlockExpect) -> Result<(), Corrupt> {
    let mut site = Site {
        tree: expect.tree,
        addr: expect.addr,
        level: None,
        slot: None,
    };
    let header = match Header::ref_from_prefix(bytes) {
        Ok((header, _)) if bytes.len() <= NODESIZE_BYTES_MAX => header,
        _ => {
            let kind = CorruptKind::Short { found: bytes.len() };
            return Err(Corrupt { site, kind });
        }
    };
    check_header(header, expect).map_err(|kind| Corrupt { site, kind })?;
    site.level = Some(header.level);
    let at_block = |kind| Corrupt { site, kind };
    let first = if header.level == 0 {
        check_leaf(bytes, header, expect, site)?
    } else {
        check_node(bytes, header, expect, site)?
    };
    if let Some(expected) = expect.first_key
        && first != Some(expected)
    {
        let found = first.map_or("none".into(), |k| k.to_string());
        return Err(at_block(mismatch("first key", found, expected)));
    }
    Ok(())
}

fn check_header(header: &Header, expect: &BlockExpect) -> Result<(), CorruptKind> {
    if header.bytenr.get() != expect.addr.get() {
        return Err(mismatch("bytenr", header.bytenr, expect.addr));
    }
    if header.fsid != expect.fsid {
        return Err(mismatch("fsid", hex(&header.fsid), hex(&expect.fsid)));
    }
    header_field("level", header.level.into(), Rule::AtMost(LEVEL_MAX.into()))?;
    if let Some(level) = expect.level
        && level != header.level
    {
        return Err(mismatch("level", header.level, level));
    }
    if let Some(generation) = expect.generation
        && generation.get() != header.generation.get()
    {
        return Err(mismatch("generation", header.generation, generation));
    }
    let flags = header.flags.get();
    let rev = flags >> header_flags::BACKREF_REV_SHIFT;
    header_field("backref revision", rev, Rule::AtMost(header_flags::MIXED_BACKREF_REV))?;
    // A block on disk was written: Linux demands the flag.
    header_field("flags", flags, Rule::OneBitOf(header_flags::WRITTEN))?;
    check_owner(header.owner.into(), expect.tree)
}

fn check_owner(owner: TreeId, tree: Option<TreeId>) -> Result<(), CorruptKind> {
    header_field("owner", owner.get(), Rule::NonZero)?;
    let Some(tree) = tree else { return Ok(()) };
    let plausible = if is_shareable(tree) {
        is_shareable(owner)
    } else if tree == TreeId::TREE_RELOC {
        // A relocation tree takes over blocks of the subvolume it copies.
        is_shareable(owner) || owner == TreeId::TREE_RELOC || owner == TreeId::DATA_RELOC
    } else {
        owner == tree
    };
    if plausible {
        Ok(())
    } else {
        Err(CorruptKind::Owner { owner, tree })
    }
}

fn check_order(prev: Option<Key>, key: Key) -> Result<(), CorruptKind> {
    match prev {
        Some(prev) if prev >= key => Err(CorruptKind::KeyOrder { prev, key }),
        _ => Ok(()),
    }
}

#[cold]
fn too_many(bytes: &[u8], count: u32, item_bytes: usize) -> CorruptKind {
    let room = bytes.len().saturating_sub(HEADER_BYTES);
    CorruptKind::Limit {
        field: "nritems",
        found: count.into(),
        limit: u64::try_from(room.checked_div(item_bytes).unwrap_or_default()).unwrap_or_default(),
    }
}

fn check_leaf(bytes: &[u8], header: &Header, expect: &BlockExpect, mut site: Site) -> Result<Option<Key>, Corrupt> {
    let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let count = header.nritems.get();
    let heads = usize::try_from(count)
        .ok()
        .and_then(|count| <[ItemHeader]>::ref_from_prefix_with_elems(body, count).ok());
    let Some((heads, _)) = heads else {
        let kind = too_many(bytes, count, ITEM_HEADER_BYTES);
        return Err(Corrupt { site, kind });
    };
    let ctx = Ctx {
        sectorsize_bytes: expect.sectorsize_bytes.into(),
        nodesize_bytes: len_u64(bytes),
        csum_bytes: u64::try_from(expect.csum_type.size_bytes()).unwrap_or_default(),
        generation: header.generation.get(),
        owner: header.owner.into(),
    };
    if heads.is_empty() {
        check_may_be_empty(ctx.owner).map_err(|kind| Corrupt { site, kind })?;
    }
    let heads_end = size_of_val(heads);
    let mut end = body.len();
    let mut prev: Option<(Key, &[u8])> = None;
    for (head, slot) in heads.iter().zip(0_u32..) {
        site.slot = Some(slot);
        let at_slot = |kind| Corrupt { site, kind };
        let key = Key::from(head.key);
        check_order(prev.map(|(key, _)| key), key).map_err(at_slot)?;
        let data = item_data(body, head, heads_end, end).map_err(at_slot)?;
        end = end.saturating_sub(data.len());
        let item = Item { key, data, ctx: &ctx };
        check_item(&item, prev).map_err(at_slot)?;
        prev = Some((key, data));
    }
    Ok(heads.first().map(|h| h.key.into()))
}

/// The item's data: it ends where the data of the item before starts, and does not reach into the
/// item headers.
#[inline]
fn item_data<'a>(body: &'a [u8], head: &ItemHeader, heads_end: usize, end: usize) -> Result<&'a [u8], CorruptKind> {
    let (offset, size) = (head.offset.get(), head.size.get());
    let found = (|| {
        let start = usize::try_from(offset).ok()?;
        let item_end = start.checked_add(usize::try_from(size).ok()?)?;
        (item_end == end && start >= heads_end).then_some(body.get(start..end)?)
    })();
    found.ok_or_else(|| CorruptKind::ItemBounds {
        offset,
        size,
        expected_end: u32::try_from(end).unwrap_or(u32::MAX),
    })
}

/// Some trees always hold something.
fn check_may_be_empty(owner: TreeId) -> Result<(), CorruptKind> {
    let never = [
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::CHUNK,
        TreeId::DEV,
        TreeId::FS,
        TreeId::DATA_RELOC,
    ];
    if never.contains(&owner) {
        return Err(CorruptKind::EmptyLeaf { owner });
    }
    Ok(())
}

fn check_node(bytes: &[u8], header: &Header, expect: &BlockExpect, mut site: Site) -> Result<Option<Key>, Corrupt> {
    let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let count = header.nritems.get();
    let ptrs = usize::try_from(count)
        .ok()
        .and_then(|count| <[KeyPtr]>::ref_from_prefix_with_elems(body, count).ok());
    let ptrs = match ptrs {
        Some((ptrs, _)) if !ptrs.is_empty() => ptrs,
        _ => {
            let kind = too_many(bytes, count, size_of::<KeyPtr>());
            return Err(Corrupt { site, kind });
        }
    };
    let mut prev: Option<Key> = None;
    for (ptr, slot) in ptrs.iter().zip(0_u32..) {
        site.slot = Some(slot);
        let key = Key::from(ptr.key);
        check_order(prev, key)
            .and_then(|()| header_field("child address", ptr.blockptr.get(), Rule::NonZero))
            .and_then(|()| {
                let aligned = Rule::AlignedTo(expect.sectorsize_bytes.into());
                header_field("child address", ptr.blockptr.get(), aligned)
            })
            .and_then(|()| {
                let past = Rule::AtMost(header.generation.get());
                header_field("child generation", ptr.generation.get(), past)
            })
            .map_err(|kind| Corrupt { site, kind })?;
        prev = Some(key);
    }
    Ok(ptrs.first().map(|p| p.key.into()))
}

/// One item; `prev` is the item before it in the leaf. Types that are not known are not judged, as
/// in Linux.
fn check_item(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    match item.key.ty {
        KeyType::INODE_ITEM => inode::check_inode_item(item),
        KeyType::INODE_REF => {
            check_same_object(item, prev)?;
            names::check_inode_ref(item)
        }
        KeyType::INODE_EXTREF => {
            check_same_object(item, prev)?;
            names::check_inode_extref(item)
        }
        KeyType::XATTR_ITEM | KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
            check_same_object(item, prev)?;
            names::check_dir_item(item)
        }
        KeyType::EXTENT_DATA => {
            check_same_object(item, prev)?;
            file::check_file_extent(item, prev)
        }
        KeyType::EXTENT_CSUM => file::check_csum_item(item, prev),
        KeyType::ORPHAN_ITEM => inode::check_orphan(item),
        KeyType::DIR_LOG_ITEM | KeyType::DIR_LOG_INDEX => inode::check_dir_log(item),
        KeyType::ROOT_ITEM => root::check_root_item(item),
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => names::check_root_ref(item),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => extent::check_extent_item(item, prev),
        KeyType::TREE_BLOCK_REF | KeyType::SHARED_BLOCK_REF => extent::check_keyed_block_ref(item),
        KeyType::SHARED_DATA_REF => extent::check_keyed_shared_data_ref(item),
        KeyType::EXTENT_DATA_REF => extent::check_keyed_data_ref(item),
        KeyType::BLOCK_GROUP_ITEM => space::check_block_group(item),
        KeyType::FREE_SPACE_INFO => space::check_free_space_info(item),
        KeyType::FREE_SPACE_EXTENT => space::check_free_space_extent(item, prev),
        KeyType::FREE_SPACE_BITMAP => space::check_free_space_bitmap(item, prev),
        KeyType::DEV_EXTENT => volume::check_dev_extent(item, prev),
        KeyType::DEV_ITEM => volume::check_dev_item(item),
        KeyType::CHUNK_ITEM => volume::check_chunk(item, item.data),
        KeyType::UUID_SUBVOL | KeyType::UUID_RECEIVED_SUBVOL => item.size(Rule::MultipleOf(8)),
        KeyType::QGROUP_STATUS => item.size(root::QGROUP_STATUS_SIZES),
        KeyType::QGROUP_INFO | KeyType::QGROUP_LIMIT => item.size(root::QGROUP_SIZE),
        KeyType::QGROUP_RELATION => item.size(Rule::Equal(0)),
        KeyType::TEMPORARY_ITEM => root::check_temporary(item),
        KeyType::PERSISTENT_ITEM => root::check_persistent(item),
        KeyType::DEV_REPLACE => root::check_dev_replace(item),
        KeyType::UNTYPED => root::check_untyped(item),
        _ => Ok(()),
    }
}

/// In a subvolume the items of an inode follow its inode item, so the item before belongs to the
/// same inode. Logs and other trees hold single items too.
fn check_same_object(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    match prev {
        Some((prev, _)) if prev.objectid != item.key.objectid && is_shareable(item.ctx.owner) => {
            Err(CorruptKind::OtherObject { key: item.key, prev })
        }
        _ => Ok(()),
    }
}
