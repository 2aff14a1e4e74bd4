//! What is left of a damaged block: a block of the same kind without the items that the verifier
//! refuses. For reading alone, where losing some items is better than losing all.
//!
//! The block must be itself: address, volume, level and owner as its reader expects. Its generation
//! may be another one, so that what is found may be an older state of the block. A checksum that
//! does not match is the caller's to judge.

use zerocopy::{FromBytes, FromZeros as _, IntoBytes};

use crate::block::{BlockExpect, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr, LEVEL_MAX, TreeBlock};
use crate::builder::{HeaderFields, LeafBuilder, NodeBuilder};
use crate::corrupt::CorruptKind;
use crate::ids::{Generation, ObjectId};
use crate::items::{InodeItem, RootItem};
use crate::key::{Key, KeyType};
use crate::verify::{FILE_TYPES, S_IFDIR, S_IFMT, S_IFREG};
use crate::view::{FileExtentView, file_extent};

/// The bits that a mode may have.
const MODE_BITS: u64 = S_IFMT | 0o7777;

/// A block without what was wrong in it.
#[derive(Clone, Debug)]
pub struct Salvaged {
    /// Verified, as any other block.
    pub block: TreeBlock,
    /// Items or pointers that are missing.
    pub lost: usize,
    /// Items with values that were set to what they may be.
    pub mended: usize,
}

/// The generation that a block states; `None` where it is shorter than a header.
pub fn generation_of(bytes: &[u8]) -> Option<Generation> {
    let (header, _) = Header::ref_from_prefix(bytes).ok()?;
    Some(header.generation.into())
}

/// Keeps of `bytes` what passes the verifier. `None` where nothing does.
pub fn salvage(bytes: &[u8], expect: &BlockExpect) -> Option<Salvaged> {
    let (header, body) = Header::ref_from_prefix(bytes).ok()?;
    if header.level > LEVEL_MAX {
        return None;
    }
    let fields = fields_of(header, expect.generation);
    // Without its first item a block begins with a later key than its parent says, but never with
    // an earlier one: walks end because keys only rise.
    let lowest = expect.first_key.unwrap_or(Key::MIN);
    let expect = BlockExpect {
        first_key: None,
        ..expect.clone()
    };
    if header.level == 0 {
        let mut items = items_of(header, body);
        items.retain(|(key, _)| *key >= lowest);
        let claimed = header.nritems.get().try_into().unwrap_or(usize::MAX);
        salvage_leaf(items, bytes.len(), &fields, &expect, claimed)
    } else {
        let mut pointers = pointers_of(header, body);
        pointers.retain(|pointer| Key::from(pointer.key) >= lowest);
        salvage_node(pointers, bytes.len(), &fields, &expect)
    }
}

/// A node without some of its pointers: `keep` says which. `None` where none is left.
pub fn keep_pointers(node: &TreeBlock, expect: &BlockExpect, keep: impl Fn(&KeyPtr) -> bool) -> Option<Salvaged> {
    let (header, body) = Header::ref_from_prefix(node.bytes()).ok()?;
    let fields = fields_of(header, None);
    let all = pointers_of(header, body);
    let kept: Vec<KeyPtr> = all.iter().copied().filter(keep).collect();
    let dropped = all.len().saturating_sub(kept.len());
    let expect = BlockExpect {
        first_key: None,
        ..expect.clone()
    };
    let mut salvaged = salvage_node(kept, node.bytes().len(), &fields, &expect)?;
    salvaged.lost = salvaged.lost.saturating_add(dropped);
    Some(salvaged)
}

/// What a block says of itself, with another generation if one is expected.
fn fields_of(header: &Header, generation: Option<Generation>) -> HeaderFields {
    HeaderFields {
        fsid: header.fsid,
        chunk_tree_uuid: header.chunk_tree_uuid,
        addr: header.bytenr.into(),
        generation: generation.unwrap_or(header.generation.into()),
        owner: header.owner.into(),
        level: header.level,
        flags: header.flags.get(),
    }
}

/// Items with their data, where that lies within the block, in the order of their keys.
fn items_of(header: &Header, body: &[u8]) -> Vec<(Key, Vec<u8>)> {
    let claimed: usize = header.nritems.get().try_into().unwrap_or(usize::MAX);
    let count = claimed.min(body.len().checked_div(ITEM_HEADER_BYTES).unwrap_or(0));
    let Ok((heads, _)) = <[ItemHeader]>::ref_from_prefix_with_elems(body, count) else {
        return Vec::new();
    };
    let heads_end = size_of_val(heads);
    let found = heads.iter().filter_map(|head| {
        let start = usize::try_from(head.offset.get()).ok()?;
        let end = start.checked_add(usize::try_from(head.size.get()).ok()?)?;
        let data = body.get(start..end).filter(|_| start >= heads_end)?;
        Some((Key::from(head.key), data.to_vec()))
    });
    rising(found.collect(), |(key, _)| *key)
}

fn pointers_of(header: &Header, body: &[u8]) -> Vec<KeyPtr> {
    let claimed: usize = header.nritems.get().try_into().unwrap_or(usize::MAX);
    let count = claimed.min(body.len().checked_div(KEY_PTR_BYTES).unwrap_or(0));
    let pointers = <[KeyPtr]>::ref_from_prefix_with_elems(body, count);
    let pointers = pointers.map_or(&[][..], |(pointers, _)| pointers);
    rising(pointers.to_vec(), |pointer| pointer.key.into())
}

/// The longest run of entries whose keys rise, so that one bad key costs one entry.
fn rising<T>(all: Vec<T>, key: impl Fn(&T) -> Key) -> Vec<T> {
    // For each length: the last entry of the run of that length that ends lowest.
    let mut ends: Vec<(Key, usize)> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(all.len());
    for (number, entry) in all.iter().enumerate() {
        let key = key(entry);
        let len = ends.partition_point(|(end, _)| *end < key);
        before.push(
            len.checked_sub(1)
                .and_then(|len| ends.get(len))
                .map(|(_, number)| *number),
        );
        match ends.get_mut(len) {
            Some(end) => *end = (key, number),
            None => ends.push((key, number)),
        }
    }
    let mut kept = vec![false; all.len()];
    let mut at = ends.last().map(|(_, number)| *number);
    while let Some(number) = at {
        if let Some(kept) = kept.get_mut(number) {
            *kept = true;
        }
        at = before.get(number).copied().flatten();
    }
    let both = all.into_iter().zip(kept);
    both.filter_map(|(entry, kept)| kept.then_some(entry)).collect()
}

/// Each turn mends or drops the first item that the verifier refuses, or makes the inode item that
/// it misses; each is done once for an item.
fn salvage_leaf(
    mut items: Vec<(Key, Vec<u8>)>,
    nodesize: usize,
    fields: &HeaderFields,
    expect: &BlockExpect,
    claimed: usize,
) -> Option<Salvaged> {
    let mut mended = 0_usize;
    let mut last_mended = None;
    let mut made: Vec<ObjectId> = Vec::new();
    while !items.is_empty() {
        let mut leaf = LeafBuilder::new(nodesize);
        // Data that several items claim may be too much for a block.
        let fitting = items.iter().take_while(|(key, data)| {
            let fits = leaf.fits(data.len());
            if fits {
                leaf.push(*key, &[data]);
            }
            fits
        });
        let fitting = fitting.count();
        items.truncate(fitting);
        let corrupt = match TreeBlock::seal(leaf.finish(fields), expect) {
            Ok(block) => {
                return Some(Salvaged {
                    block,
                    lost: claimed.saturating_sub(items.len().saturating_sub(made.len())),
                    mended,
                });
            }
            Err(corrupt) => corrupt,
        };
        let slot = usize::try_from(corrupt.site.slot?).ok()?;
        let key = items.get(slot)?.0;
        if matches!(corrupt.kind, CorruptKind::OtherObject { .. }) && !made.contains(&key.objectid) {
            made.push(key.objectid);
            mended = mended.saturating_add(1);
            let inode = made_inode(&items, key.objectid, fields.generation);
            items.insert(slot, (Key::new(key.objectid, KeyType::INODE_ITEM, 0), inode));
            continue;
        }
        let kind = mode_of(&items, key.objectid);
        let (_, data) = items.get_mut(slot)?;
        if last_mended != Some(key) && mend(key, data, fields.generation, kind) {
            last_mended = Some(key);
            mended = mended.saturating_add(1);
        } else {
            mended = mended.saturating_sub(usize::from(last_mended == Some(key)));
            items.remove(slot);
        }
    }
    None
}

fn salvage_node(
    mut pointers: Vec<KeyPtr>,
    nodesize: usize,
    fields: &HeaderFields,
    expect: &BlockExpect,
) -> Option<Salvaged> {
    let claimed = pointers.len();
    while !pointers.is_empty() {
        let mut node = NodeBuilder::new(nodesize);
        for pointer in &pointers {
            node.push(pointer.key.into(), pointer.blockptr.into(), pointer.generation.into());
        }
        match TreeBlock::seal(node.finish(fields), expect) {
            Ok(block) => {
                return Some(Salvaged {
                    block,
                    lost: claimed.saturating_sub(pointers.len()),
                    mended: 0,
                });
            }
            Err(corrupt) => {
                let slot = usize::try_from(corrupt.site.slot?).ok()?;
                pointers.get(slot)?;
                pointers.remove(slot);
            }
        }
    }
    None
}

/// Without its inode item a file is lost with all that it has, and without its root item a
/// subvolume. So their values are set to what they may be, where they say nothing of the contents.
/// False: there is nothing to mend.
fn mend(key: Key, data: &mut [u8], generation: Generation, kind: u64) -> bool {
    match key.ty {
        KeyType::INODE_ITEM => mend_inode(data, generation.get(), kind),
        KeyType::ROOT_ITEM => mend_root(data, generation.get()),
        _ => false,
    }
}

/// The type of a file by its items.
fn mode_of(items: &[(Key, Vec<u8>)], object: ObjectId) -> u64 {
    let is_name = |key: &Key| [KeyType::DIR_ITEM, KeyType::DIR_INDEX].contains(&key.ty);
    let has_names = items.iter().any(|(key, _)| key.objectid == object && is_name(key));
    if has_names || object == ObjectId::FIRST_FREE {
        S_IFDIR
    } else {
        S_IFREG
    }
}

/// An inode item in the place of one that is lost: for its owner alone, as long as its contents.
fn made_inode(items: &[(Key, Vec<u8>)], object: ObjectId, generation: Generation) -> Vec<u8> {
    let mode = mode_of(items, object);
    let extents = items
        .iter()
        .filter(|(key, _)| key.objectid == object && key.ty == KeyType::EXTENT_DATA);
    let ends = extents.filter_map(|(key, data)| {
        let len = match file_extent(data)? {
            FileExtentView::Inline { head, .. } => head.ram_bytes.get(),
            FileExtentView::Regular(extent) => extent.num_bytes.get(),
        };
        key.offset.checked_add(len)
    });
    let mut inode = InodeItem::new_zeroed();
    inode.generation = generation.into();
    inode.transid = generation.into();
    inode.nlink = 1.into();
    let mode_bits = mode | if mode == S_IFDIR { 0o700 } else { 0o600 };
    inode.mode = u32::try_from(mode_bits).unwrap_or_default().into();
    inode.size = ends.max().filter(|_| mode == S_IFREG).unwrap_or(0).into();
    inode.as_bytes().to_vec()
}

fn mend_inode(data: &mut [u8], newest: u64, kind: u64) -> bool {
    let Ok((inode, _)) = InodeItem::mut_from_prefix(data) else {
        return false;
    };
    let before = *inode;
    inode.generation = inode.generation.get().min(newest).into();
    inode.transid = inode.transid.get().min(newest).into();
    let mut mode = u64::from(inode.mode.get()) & MODE_BITS;
    if !FILE_TYPES.holds(mode & S_IFMT) {
        mode = kind | (mode & !S_IFMT);
    }
    inode.mode = u32::try_from(mode).unwrap_or_default().into();
    if mode & S_IFMT == S_IFDIR {
        inode.nlink = inode.nlink.get().min(1).into();
    }
    before.as_bytes() != inode.as_bytes()
}

/// How far its deletion is does not matter for reading.
fn mend_root(data: &mut [u8], newest: u64) -> bool {
    let Ok((root, _)) = RootItem::mut_from_prefix(data) else {
        return false;
    };
    let before = *root;
    root.generation = root.generation.get().min(newest).into();
    root.generation_v2 = root.generation_v2.get().min(newest).into();
    root.last_snapshot = root.last_snapshot.get().min(newest).into();
    root.drop_progress = Key::MIN.into();
    root.drop_level = 0;
    before.as_bytes() != root.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::HEADER_BYTES;
    use crate::csum::ChecksumType;
    use crate::features::header_flags;
    use crate::ids::{LogicalAddr, TreeId};

    const NODESIZE: usize = 4096;

    fn fields(level: u8) -> HeaderFields {
        HeaderFields {
            fsid: [7; 16],
            chunk_tree_uuid: [9; 16],
            addr: LogicalAddr(1 << 20),
            generation: Generation(5),
            owner: TreeId::FS,
            level,
            flags: header_flags::CURRENT,
        }
    }

    fn expect() -> BlockExpect {
        BlockExpect {
            addr: LogicalAddr(1 << 20),
            fsid: [7; 16],
            csum_type: ChecksumType::Crc32c,
            sectorsize_bytes: 4096,
            level: None,
            generation: Some(Generation(5)),
            first_key: Some(key(1)),
            tree: Some(TreeId::FS),
        }
    }

    /// Of a type that the verifier does not judge.
    fn key(n: u64) -> Key {
        Key::new(ObjectId(n), KeyType::STRING_ITEM, 0)
    }

    fn inode(mode: u32, generation: u64) -> Vec<u8> {
        let mut inode = InodeItem::new_zeroed();
        inode.mode = mode.into();
        inode.nlink = 1.into();
        inode.generation = generation.into();
        inode.as_bytes().to_vec()
    }

    fn inode_key(n: u64) -> Key {
        Key::new(ObjectId(n), KeyType::INODE_ITEM, 0)
    }

    fn leaf(items: &[(Key, Vec<u8>)], fields: &HeaderFields) -> Vec<u8> {
        let mut leaf = LeafBuilder::new(NODESIZE);
        for (key, data) in items {
            leaf.push(*key, &[data]);
        }
        leaf.finish(fields)
    }

    fn keys(block: &TreeBlock) -> Vec<Key> {
        (0..block.len()).map(|slot| block.key(slot)).collect()
    }

    #[test]
    fn items_that_are_refused_are_left_out() {
        let items = [
            (key(1), vec![1; 10]),
            // Half an inode.
            (inode_key(300), inode(0o100_644, 3)[..80].to_vec()),
            (key(300), vec![2; 20]),
        ];
        let bytes = leaf(&items, &fields(0));
        assert!(TreeBlock::seal(bytes.clone(), &expect()).is_err());
        let salvaged = salvage(&bytes, &expect()).expect("two items are good");
        assert_eq!(keys(&salvaged.block), [key(1), key(300)]);
        assert_eq!(salvaged.block.data(1), [2; 20]);
        assert_eq!((salvaged.lost, salvaged.mended), (1, 0));
    }

    #[test]
    fn inodes_from_the_future_are_mended() {
        let items = [(inode_key(300), inode(0o100_644, 6))];
        let salvaged = salvage(&leaf(&items, &fields(0)), &expect()).expect("it is mended");
        assert_eq!((salvaged.lost, salvaged.mended), (0, 1));
        let (kept, _) = InodeItem::read_from_prefix(salvaged.block.data(0)).expect("an inode");
        assert_eq!((kept.generation.get(), kept.mode.get()), (5, 0o100_644));
    }

    #[test]
    fn inodes_that_are_lost_or_of_no_type_are_made_by_their_items() {
        let mut extent = vec![0; 21 + 5];
        extent[8] = 5;
        let extent_key = |n| Key::new(ObjectId(n), KeyType::EXTENT_DATA, 0);
        let items = [
            (inode_key(300), inode(0o644, 3)),
            (extent_key(300), extent.clone()),
            (extent_key(301), extent),
        ];
        let salvaged = salvage(&leaf(&items, &fields(0)), &expect()).expect("all is mended");
        assert_eq!((salvaged.lost, salvaged.mended), (0, 2));
        let inode_at = |slot: usize| InodeItem::read_from_bytes(salvaged.block.data(slot)).expect("an inode");
        assert_eq!(inode_at(0).mode.get(), 0o100_644);
        assert_eq!(salvaged.block.key(2), inode_key(301));
        assert_eq!((inode_at(2).mode.get(), inode_at(2).size.get()), (0o100_600, 5));
    }

    #[test]
    fn data_outside_of_the_block_and_keys_out_of_order_cost_their_items() {
        let items: Vec<_> = (1..6).map(|n| (key(n), vec![n as u8; 8])).collect();
        let mut bytes = leaf(&items, &fields(0));
        let head = |slot: usize| HEADER_BYTES + slot * ITEM_HEADER_BYTES;
        // The offset of the second item, and the object of the fourth.
        bytes[head(1) + 17..head(1) + 21].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes[head(3)..head(3) + 8].copy_from_slice(&1_u64.to_le_bytes());
        let salvaged = salvage(&bytes, &expect()).expect("three items are good");
        assert_eq!(keys(&salvaged.block), [key(1), key(3), key(5)]);
        assert_eq!(salvaged.block.data(2), [5; 8]);
        assert_eq!(salvaged.lost, 2);
        // A key that is too large costs itself alone, too.
        let mut bytes = leaf(&items, &fields(0));
        bytes[head(1)..head(1) + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let salvaged = salvage(&bytes, &expect()).expect("four items are good");
        assert_eq!(keys(&salvaged.block), [key(1), key(3), key(4), key(5)]);
        // What lies before the block's place is another block's.
        let later = BlockExpect {
            first_key: Some(key(3)),
            ..expect()
        };
        let salvaged = salvage(&leaf(&items, &fields(0)), &later).expect("three items are good");
        assert_eq!(keys(&salvaged.block), [key(3), key(4), key(5)]);
    }

    #[test]
    fn another_generation_is_taken_and_another_place_is_not() {
        let items = [(key(1), vec![1; 10])];
        let other = HeaderFields {
            generation: Generation(4),
            ..fields(0)
        };
        let salvaged = salvage(&leaf(&items, &other), &expect()).expect("an older state");
        assert_eq!(salvaged.block.generation(), Generation(5));
        let elsewhere = HeaderFields {
            addr: LogicalAddr(2 << 20),
            ..fields(0)
        };
        assert!(salvage(&leaf(&items, &elsewhere), &expect()).is_none());
        let foreign = HeaderFields {
            owner: TreeId::CSUM,
            ..fields(0)
        };
        assert!(salvage(&leaf(&items, &foreign), &expect()).is_none());
        assert!(salvage(&[0; NODESIZE], &expect()).is_none());
        assert!(salvage(&[], &expect()).is_none());
    }

    #[test]
    fn pointers_that_are_refused_or_not_wanted_are_left_out() {
        let mut node = NodeBuilder::new(NODESIZE);
        for n in 1..6 {
            // One is from the future.
            node.push(key(n), LogicalAddr(n << 20), Generation(if n == 2 { 6 } else { 4 }));
        }
        let salvaged = salvage(&node.finish(&fields(1)), &expect()).expect("four are good");
        assert_eq!(keys(&salvaged.block), [key(1), key(3), key(4), key(5)]);
        let kept = keep_pointers(&salvaged.block, &expect(), |ptr| ptr.blockptr.get() != 1 << 20);
        let kept = kept.expect("three are left");
        assert_eq!((keys(&kept.block), kept.lost), (vec![key(3), key(4), key(5)], 1));
        assert!(keep_pointers(&salvaged.block, &expect(), |_| false).is_none());
    }

    #[test]
    fn roots_from_the_future_are_mended() {
        let mut root = RootItem::new_zeroed();
        root.inode.mode = 0o40_755.into();
        root.inode.nlink = 1.into();
        root.bytenr = (1 << 22).into();
        root.refs = 1.into();
        root.generation = 133.into();
        root.root_dirid = 256.into();
        let items = [(
            Key::new(TreeId::FS.object_id(), KeyType::ROOT_ITEM, 0),
            root.as_bytes().to_vec(),
        )];
        let (fields, expect) = (
            HeaderFields {
                owner: TreeId::ROOT,
                ..fields(0)
            },
            BlockExpect {
                tree: Some(TreeId::ROOT),
                ..expect()
            },
        );
        let salvaged = salvage(&leaf(&items, &fields), &expect).expect("it is mended");
        assert_eq!((salvaged.lost, salvaged.mended), (0, 1));
        let (kept, _) = RootItem::read_from_prefix(salvaged.block.data(0)).expect("a root");
        assert_eq!(kept.generation.get(), 5);
    }

    #[test]
    fn the_longest_run_of_rising_keys_is_kept() {
        let kept = |numbers: &[u64]| rising(numbers.to_vec(), |n| key(*n));
        assert_eq!(kept(&[1, 2, 3]), [1, 2, 3]);
        assert_eq!(kept(&[9, 1, 2, 3]), [1, 2, 3]);
        assert_eq!(kept(&[1, 2, 9, 3, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(kept(&[5, 4]).len(), 1);
        assert!(kept(&[]).is_empty());
    }

    /// Any bytes: nothing panics, and what comes out has passed the verifier.
    #[test]
    fn noise_is_survived() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        let items: Vec<_> = (1..60).map(|n| (key(n), vec![n as u8; 30])).collect();
        let sound = leaf(&items, &fields(0));
        for _ in 0..2000 {
            let mut bytes = sound.clone();
            for _ in 0..next() % 20 {
                let at = HEADER_BYTES + next() % (NODESIZE - HEADER_BYTES);
                bytes[at] = next() as u8;
            }
            let salvaged = salvage(&bytes, &expect()).expect("not all is lost");
            assert!(salvaged.block.len() + salvaged.lost >= 59);
            // The header, too.
            bytes[32 + next() % (HEADER_BYTES - 32)] = next() as u8;
            let _ = salvage(&bytes, &expect());
        }
    }
}
