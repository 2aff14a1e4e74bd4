//! Does to hostile bytes all that readers do: none of it may panic. Shared by the mutation test and
//! the fuzz targets.

use btrfs_format::block::{BlockExpect, Header};
use btrfs_format::superblock::SUPERBLOCK_BYTES;
use btrfs_format::{ChecksumType, Key, KeyType, Superblock, TreeBlock, render, view};
use zerocopy::{FromBytes, IntoBytes};

/// What a block says about itself, as expectation: so that the checks behind the identity are
/// reached.
pub fn expect_itself(bytes: &[u8]) -> Option<BlockExpect> {
    let (header, _) = Header::ref_from_prefix(bytes).ok()?;
    Some(BlockExpect {
        addr: header.bytenr.into(),
        fsid: header.fsid,
        csum_type: ChecksumType::Crc32c,
        sectorsize_bytes: 4096,
        level: None,
        generation: None,
        first_key: None,
        tree: None,
    })
}

/// Seals the bytes as a tree block and, where they are accepted, reads all of it. True where they
/// were.
pub fn block(bytes: &[u8]) -> bool {
    let Some(expect) = expect_itself(bytes) else {
        return false;
    };
    // Unverified items must not hurt the views either.
    views(&Key::MIN, bytes);
    let Ok(block) = TreeBlock::seal(bytes.to_vec(), &expect) else {
        return false;
    };
    assert!(TreeBlock::verify(block.bytes(), &expect).is_ok());
    for slot in 0..block.len() {
        assert_eq!(block.search(&block.key(slot)), Ok(slot));
        assert_eq!(block.child_slot(&block.key(slot)), slot);
        if block.is_leaf() {
            let (key, data) = block.item(slot);
            views(&key, data);
        } else {
            block.child(slot);
        }
    }
    assert!(block.used_bytes() <= bytes.len());
    assert!(!render::block_text(&block).is_empty());
    render::block_json(&block).to_string();
    true
}

/// All views of an item, whatever its type says.
pub fn views(key: &Key, data: &[u8]) {
    view::dir_entries(data).count();
    view::inode_refs(data).count();
    view::inode_extrefs(data).count();
    view::system_chunks(data).count();
    view::root_ref(data);
    view::root_item(data);
    view::chunk(data);
    view::file_extent(data);
    view::keyed_back_ref(key, data);
    if let Some(extent) = view::ExtentView::new(key, data) {
        extent.inline_refs().count();
    }
    render::item_text(key, data);
    render::item_json(key, data);
    // The description as of any other type: its data never passed the verifier for that.
    let ty = KeyType(data.first().copied().unwrap_or(key.ty.0));
    render::item_text(&Key { ty, ..*key }, data);
}

/// Seals the bytes as a superblock and, where they are accepted, reads all of it. True where they
/// were.
pub fn superblock(bytes: &[u8]) -> bool {
    let _ = Superblock::verify(bytes, None);
    let mut room = [0; SUPERBLOCK_BYTES];
    for (to, from) in room.iter_mut().zip(bytes) {
        *to = *from;
    }
    let Ok(mut sb) = Superblock::read_from_bytes(&room) else {
        return false;
    };
    sb.access();
    render::superblock_text(&sb);
    render::superblock_json(&sb).to_string();
    let Some(ty) = sb.checksum_type() else { return false };
    sb.seal(ty);
    Superblock::verify(sb.as_bytes(), None).is_ok()
}
