//! Checks AGF, AGI and AGFL.

use cowshed_layout::Rule;

use super::sectors::{AG_BTREE_LEVELS_MAX, AG_VERSION, AGFL_HEADER_BYTES, Agf, AgflHeader, Agi};
use crate::corrupt::{Checked, field, mismatch, truncated};
use crate::features::{incompat, ro_compat};
use crate::geometry::{CHUNK_INODES, Geometry};
use crate::header::{Expect, Owner};
use crate::ids::{AgBlock, AgIno, AgNumber};
use crate::view;

/// The group that led here; the sector's own number where none did.
fn group_of(expect: &Expect<'_>, seqno: u32) -> Result<AgNumber, crate::corrupt::Fault> {
    let group = match expect.owner {
        Some(Owner::Ag(group)) => group,
        _ => AgNumber(seqno),
    };
    if seqno != group.get() {
        return Err(mismatch("seqno", seqno, group));
    }
    field(
        "seqno",
        seqno,
        Rule::AtMost(u64::from(expect.geometry.ag_count).saturating_sub(1)),
    )?;
    Ok(group)
}

fn root(geometry: &Geometry, group: AgNumber, names: [&'static str; 2], root: u32, level: u32) -> Checked {
    let [root_name, level_name] = names;
    field(level_name, level, Rule::Between(1, AG_BTREE_LEVELS_MAX))?;
    if geometry.is_ag_block(group, AgBlock(root)) {
        return Ok(());
    }
    Err(mismatch(root_name, root, "a block of the group"))
}

pub(super) fn agf(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let Some(agf) = view::at::<Agf>(bytes, 0) else {
        return Err(truncated("AGF", size_of::<Agf>(), bytes.len()));
    };
    let geometry = expect.geometry;
    let group = group_of(expect, agf.seqno.get())?;
    field("versionnum", agf.versionnum.get(), Rule::Equal(AG_VERSION))?;
    let length = u64::from(agf.length.get());
    field("length", length, Rule::Equal(geometry.ag_len(group).into()))?;
    root(
        geometry,
        group,
        ["bnoroot", "bnolevel"],
        agf.bnoroot.get(),
        agf.bnolevel.get(),
    )?;
    root(
        geometry,
        group,
        ["cntroot", "cntlevel"],
        agf.cntroot.get(),
        agf.cntlevel.get(),
    )?;
    if geometry.has_ro_compat(ro_compat::RMAPBT) {
        root(
            geometry,
            group,
            ["rmaproot", "rmaplevel"],
            agf.rmaproot.get(),
            agf.rmaplevel.get(),
        )?;
        field("rmapblocks", agf.rmapblocks.get(), Rule::AtMost(length))?;
    }
    if geometry.has_ro_compat(ro_compat::REFLINK) {
        let names = ["refcntroot", "refcntlevel"];
        root(geometry, group, names, agf.refcntroot.get(), agf.refcntlevel.get())?;
        field("refcntblocks", agf.refcntblocks.get(), Rule::AtMost(length))?;
    }
    let slots = u64::from(geometry.agfl_slots());
    let last_slot = slots.saturating_sub(1);
    field("flfirst", agf.flfirst.get(), Rule::AtMost(last_slot))?;
    field("fllast", agf.fllast.get(), Rule::AtMost(last_slot))?;
    field("flcount", agf.flcount.get(), Rule::AtMost(slots))?;
    field("freeblks", agf.freeblks.get(), Rule::AtMost(length))?;
    field("longest", agf.longest.get(), Rule::AtMost(agf.freeblks.get().into()))?;
    field("btreeblks", agf.btreeblks.get(), Rule::AtMost(length))
}

pub(super) fn agi(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let Some(agi) = view::at::<Agi>(bytes, 0) else {
        return Err(truncated("AGI", size_of::<Agi>(), bytes.len()));
    };
    let geometry = expect.geometry;
    let group = group_of(expect, agi.seqno.get())?;
    field("versionnum", agi.versionnum.get(), Rule::Equal(AG_VERSION))?;
    let length = u64::from(agi.length.get());
    field("length", length, Rule::Equal(geometry.ag_len(group).into()))?;
    root(geometry, group, ["root", "level"], agi.root.get(), agi.level.get())?;
    if geometry.has_ro_compat(ro_compat::FINOBT) {
        root(
            geometry,
            group,
            ["free_root", "free_level"],
            agi.free_root.get(),
            agi.free_level.get(),
        )?;
    }
    if geometry.has_ro_compat(ro_compat::INOBTCNT) {
        field("ino_blocks", agi.ino_blocks.get(), Rule::AtMost(length))?;
        field("fino_blocks", agi.fino_blocks.get(), Rule::AtMost(length))?;
    }
    let per_block = 1_u64.wrapping_shl(geometry.inodes_per_block_log.into());
    field("count", agi.count.get(), Rule::AtMost(length.saturating_mul(per_block)))?;
    if !geometry.has_incompat(incompat::SPINODES) {
        field("count", agi.count.get(), Rule::AlignedTo(CHUNK_INODES.into()))?;
    }
    field("freecount", agi.freecount.get(), Rule::AtMost(agi.count.get().into()))?;
    for (name, ino) in [("newino", agi.newino.get()), ("dirino", agi.dirino.get())] {
        if ino != AgIno::NULL && !geometry.is_ag_ino(group, AgIno(ino)) {
            return Err(mismatch(name, ino, "an inode of the group"));
        }
    }
    for (bucket, ino) in agi.unlinked.iter().enumerate() {
        let ino = ino.get();
        if ino != AgIno::NULL && !geometry.is_ag_ino(group, AgIno(ino)) {
            return Err(mismatch("unlinked", ino, "an inode of the group").in_slot(bucket));
        }
    }
    Ok(())
}

pub(super) fn agfl(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let geometry = expect.geometry;
    // On V4 old slots hold anything.
    if !geometry.is_v5() {
        return Ok(());
    }
    let Some(header) = view::at::<AgflHeader>(bytes, 0) else {
        return Err(truncated("AGFL", size_of::<AgflHeader>(), bytes.len()));
    };
    let group = group_of(expect, header.seqno.get())?;
    let count = crate::num::to_len(geometry.agfl_slots().into());
    let slots: &[zerocopy::big_endian::U32] = view::slice(bytes, AGFL_HEADER_BYTES, count).unwrap_or_default();
    for (slot, block) in slots.iter().enumerate() {
        let block = block.get();
        if block != AgBlock::NULL && block >= geometry.ag_len(group) {
            return Err(mismatch("bno", block, "a block of the group").in_slot(slot));
        }
    }
    Ok(())
}
