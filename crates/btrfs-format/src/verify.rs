//! The verifier: everything a block claims is checked here, once, so that other code need not.

use zerocopy::FromBytes;

use crate::block::{
    BlockExpect, Corrupt, CorruptKind, HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr,
    LEVEL_MAX, Site,
};
use crate::key::Key;
use crate::superblock::CSUM_FIELD_BYTES;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
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

fn mismatch(field: &'static str, found: impl ToString, expected: impl ToString) -> CorruptKind {
    CorruptKind::Mismatch {
        field,
        found: found.to_string(),
        expected: expected.to_string(),
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
    let Ok((header, _)) = Header::ref_from_prefix(bytes) else {
        return Err(Corrupt {
            site,
            kind: CorruptKind::Short { found: bytes.len() },
        });
    };
    site.level = Some(header.level);
    let fail = |kind| Err(Corrupt { site, kind });
    if header.bytenr.get() != expect.addr.get() {
        return fail(mismatch("bytenr", header.bytenr, expect.addr));
    }
    if header.fsid != expect.fsid {
        return fail(mismatch("fsid", hex(&header.fsid), hex(&expect.fsid)));
    }
    if header.level > LEVEL_MAX {
        return fail(CorruptKind::Limit {
            field: "level",
            found: header.level.into(),
            limit: LEVEL_MAX.into(),
        });
    }
    if let Some(level) = expect.level
        && level != header.level
    {
        return fail(mismatch("level", header.level, level));
    }
    if let Some(generation) = expect.generation
        && generation.get() != header.generation.get()
    {
        return fail(mismatch("generation", header.generation, generation));
    }
    let first = if header.level == 0 {
        check_leaf(bytes, header, site)?
    } else {
        check_node(bytes, header, site)?
    };
    if let Some(expected) = expect.first_key
        && first != Some(expected)
    {
        return fail(mismatch(
            "first key",
            first.map_or("none".into(), |k| k.to_string()),
            expected,
        ));
    }
    Ok(())
}

fn check_leaf(bytes: &[u8], header: &Header, mut site: Site) -> Result<Option<Key>, Corrupt> {
    let count = header.nritems.get() as usize;
    let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let limit = body.len() / ITEM_HEADER_BYTES;
    let Ok((heads, _)) = <[ItemHeader]>::ref_from_prefix_with_elems(body, count) else {
        let kind = CorruptKind::Limit {
            field: "nritems",
            found: count as u64,
            limit: limit as u64,
        };
        return Err(Corrupt { site, kind });
    };
    let mut end = body.len() as u64;
    let mut prev: Option<Key> = None;
    for (slot, head) in heads.iter().enumerate() {
        site.slot = u32::try_from(slot).ok();
        let key = Key::from(head.key);
        if let Some(prev) = prev
            && prev >= key
        {
            return Err(Corrupt {
                site,
                kind: CorruptKind::KeyOrder { prev, key },
            });
        }
        let (offset, size) = (head.offset.get(), head.size.get());
        if u64::from(offset) + u64::from(size) != end || (offset as usize) < count * ITEM_HEADER_BYTES {
            let kind = CorruptKind::ItemBounds {
                offset,
                size,
                expected_end: end as u32,
            };
            return Err(Corrupt { site, kind });
        }
        end = offset.into();
        prev = Some(key);
    }
    Ok(heads.first().map(|h| h.key.into()))
}

fn check_node(bytes: &[u8], header: &Header, mut site: Site) -> Result<Option<Key>, Corrupt> {
    let count = header.nritems.get() as usize;
    let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let limit = body.len() / KEY_PTR_BYTES;
    let ptrs = match <[KeyPtr]>::ref_from_prefix_with_elems(body, count) {
        Ok((ptrs, _)) if count > 0 => ptrs,
        _ => {
            let kind = CorruptKind::Limit {
                field: "nritems",
                found: count as u64,
                limit: limit as u64,
            };
            return Err(Corrupt { site, kind });
        }
    };
    let mut prev: Option<Key> = None;
    for (slot, ptr) in ptrs.iter().enumerate() {
        site.slot = u32::try_from(slot).ok();
        let key = Key::from(ptr.key);
        if let Some(prev) = prev
            && prev >= key
        {
            return Err(Corrupt {
                site,
                kind: CorruptKind::KeyOrder { prev, key },
            });
        }
        prev = Some(key);
    }
    Ok(ptrs.first().map(|p| p.key.into()))
}
