//! Checks an inode: core, forks that lie in it, and what they say about each other.

use cowshed_layout::Rule;

use super::core::{CORE_BYTES_V3, InodeCore, core_bytes, mode};
use super::fork::{self, ForkFormat};
use crate::btree::{BmapRecord, BmdrRoot, EXTENT_BLOCKS_MAX};
use crate::corrupt::{Checked, Fault, agree, field, mismatch, truncated};
use crate::features::{incompat, inode_flags, inode_flags2};
use crate::geometry::Geometry;
use crate::header::Expect;
use crate::ids::AgIno;
use crate::num::{count_of, to_len};
use crate::view;

/// The longest target of a symlink.
pub(crate) const SYMLINK_BYTES_MAX: u64 = 1024;
const NEXTENTS_MAX_OLD: u64 = (1 << 31) - 1;
const ATTR_EXTENTS_MAX_OLD: u64 = (1 << 15) - 1;
const NEXTENTS_MAX: u64 = (1 << 48) - 1;
const ATTR_EXTENTS_MAX: u64 = (1 << 32) - 1;
const NSEC_MAX: u64 = 999_999_999;

fn core_of(bytes: &[u8], is_v5: bool) -> Result<InodeCore, Fault> {
    let short = || truncated("core", core_bytes(is_v5), bytes.len());
    let mut core = [0; CORE_BYTES_V3];
    let used = bytes.get(..core_bytes(is_v5)).ok_or_else(short)?;
    for (to, from) in core.iter_mut().zip(used) {
        *to = *from;
    }
    Ok(zerocopy::transmute!(core))
}

pub(super) fn inode(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let geometry = expect.geometry;
    let core = core_of(bytes, geometry.is_v5())?;
    let versions: &[u64] = if geometry.is_v5() { &[3] } else { &[1, 2] };
    field("version", core.version, Rule::OneOf(versions))?;
    let next = core.next_unlinked.get();
    let group = expect.group();
    if next != AgIno::NULL && !group.is_none_or(|group| geometry.is_ag_ino(group, AgIno(next))) {
        return Err(mismatch("next_unlinked", next, "an inode of the group"));
    }
    if core.mode.get() == 0 {
        // A free inode keeps what it last was, but has no forks and no links.
        return Ok(());
    }
    field("mode", core.file_type(), Rule::OneOf(mode::TYPES))?;
    field("size", core.size.get(), Rule::AtMost(i64::MAX.unsigned_abs()))?;
    check_flags(&core, geometry)?;
    check_times(&core)?;
    check_counts(&core)?;
    let forks = bytes.get(core_bytes(geometry.is_v5())..).unwrap_or_default();
    // The attribute fork has room for at least one byte of its header.
    let units = forks.len() >> 3;
    let last = u64::try_from(units.saturating_sub(1)).unwrap_or_default();
    field("forkoff", core.forkoff, Rule::AtMost(last))?;
    let Some((data, attr)) = fork::split(forks, core.forkoff) else {
        return Err(truncated("data fork", core.attr_fork_at(), forks.len()));
    };
    check_data_fork(&core, data, geometry)?;
    check_attr_fork(&core, attr, geometry)?;
    Ok(())
}

fn check_flags(core: &InodeCore, geometry: &Geometry) -> Checked {
    let is_dir = core.file_type() == mode::DIR;
    let is_file = core.file_type() == mode::REGULAR;
    if core.version < 3 {
        return Ok(());
    }
    let flags2 = core.flags2.get();
    agree(
        flags2 & inode_flags2::REFLINK == 0 || geometry.has_reflink(),
        "flags2 has REFLINK, the volume has not",
    )?;
    agree(
        flags2 & inode_flags2::REFLINK == 0 || is_file,
        "flags2 has REFLINK, but this is no file",
    )?;
    agree(
        flags2 & inode_flags2::REFLINK == 0 || !core.is_realtime() || geometry.has_incompat(incompat::METADIR),
        "flags2 has REFLINK, but the file lies on the realtime device",
    )?;
    agree(
        flags2 & inode_flags2::COWEXTSIZE == 0 || is_file || is_dir,
        "flags2 has COWEXTSIZE, but this is neither file nor directory",
    )?;
    agree(
        flags2 & inode_flags2::BIGTIME == 0 || geometry.has_incompat(incompat::BIGTIME),
        "flags2 has BIGTIME, the volume has not",
    )?;
    agree(
        flags2 & inode_flags2::NREXT64 == 0 || geometry.has_incompat(incompat::NREXT64),
        "flags2 has NREXT64, the volume has not",
    )?;
    agree(
        flags2 & inode_flags2::METADATA == 0 || geometry.has_incompat(incompat::METADIR),
        "flags2 has METADATA, but the volume has no metadata directory",
    )?;
    let (hint, inherited) = (
        core.has_flag(inode_flags::EXTSIZE),
        core.has_flag(inode_flags::EXTSZINHERIT),
    );
    agree(!hint || is_file, "flags has EXTSIZE, but this is no file")?;
    agree(!inherited || is_dir, "flags has EXTSZINHERIT, but this is no directory")?;
    let most = u64::from(if hint || inherited { EXTENT_BLOCKS_MAX } else { 0 });
    field("extsize", core.extsize.get(), Rule::AtMost(most))?;
    let uses_cow_hint = flags2 & inode_flags2::COWEXTSIZE != 0;
    let most = u64::from(if uses_cow_hint { EXTENT_BLOCKS_MAX } else { 0 });
    if geometry.has_reflink() {
        field("cowextsize", core.cowextsize.get(), Rule::AtMost(most))?;
    }
    Ok(())
}

fn check_times(core: &InodeCore) -> Checked {
    if core.is_bigtime() {
        return Ok(());
    }
    let crtime = if core.version >= 3 { core.crtime.get() } else { 0 };
    [
        ("atime.nsec", core.atime.get()),
        ("mtime.nsec", core.mtime.get()),
        ("ctime.nsec", core.ctime.get()),
        ("crtime.nsec", crtime),
    ]
    .into_iter()
    .try_for_each(|(name, raw)| field(name, raw & 0xffff_ffff, Rule::AtMost(NSEC_MAX)))
}

fn check_counts(core: &InodeCore) -> Checked {
    let (data, attr) = (core.data_extents(), u64::from(core.attr_extents()));
    if core.is_nrext64() {
        field("nextents", data, Rule::AtMost(NEXTENTS_MAX))?;
        field("naextents", attr, Rule::AtMost(ATTR_EXTENTS_MAX))?;
        field("nrext64_pad", core.anextents.get(), Rule::Equal(0))?;
    } else {
        field("nextents", data, Rule::AtMost(NEXTENTS_MAX_OLD))?;
        field("naextents", attr, Rule::AtMost(ATTR_EXTENTS_MAX_OLD))?;
    }
    field("nextents", data.saturating_add(attr), Rule::AtMost(core.nblocks.get()))
}

fn check_data_fork(core: &InodeCore, room: &[u8], geometry: &Geometry) -> Checked {
    let file_type = core.file_type();
    let Some(format) = ForkFormat::from_raw(core.format) else {
        return field("format", core.format, Rule::AtMost(5));
    };
    let is_metadata = core.has_flag2(inode_flags2::METADATA);
    let allowed: &[u64] = match file_type {
        _ if fork::is_special(file_type) => &[0],
        mode::REGULAR if is_metadata => &[2, 3, 5],
        mode::REGULAR => &[2, 3],
        mode::SYMLINK => &[1, 2],
        _ => &[1, 2, 3],
    };
    field("format", core.format, Rule::OneOf(allowed))?;
    match file_type {
        mode::SYMLINK => field("size", core.size.get(), Rule::Between(1, SYMLINK_BYTES_MAX))?,
        mode::DIR => field("size", core.size.get(), Rule::NonZero)?,
        _ => {}
    }
    match format {
        ForkFormat::Dev if room.len() < size_of::<u32>() => Err(truncated("device", size_of::<u32>(), room.len())),
        ForkFormat::Local => {
            let room_bytes = u64::try_from(room.len()).unwrap_or_default();
            field("nextents", core.data_extents(), Rule::Equal(0))?;
            field("size", core.size.get(), Rule::AtMost(room_bytes))
        }
        ForkFormat::Extents => check_extents(core.data_extents(), room, geometry, core.is_realtime()),
        ForkFormat::Btree => check_btree(core.data_extents(), room, geometry),
        ForkFormat::Dev | ForkFormat::Uuid | ForkFormat::MetaBtree => Ok(()),
    }
}

fn check_attr_fork(core: &InodeCore, room: &[u8], geometry: &Geometry) -> Checked {
    let extents = u64::from(core.attr_extents());
    let Some(format) = ForkFormat::from_raw(core.aformat) else {
        return field("aformat", core.aformat, Rule::OneOf(&[1, 2, 3]));
    };
    if core.forkoff == 0 {
        // Without a fork its format is that of an empty list of extents; old kernels left zero.
        field("aformat", core.aformat, Rule::OneOf(&[0, 2]))?;
        return field("naextents", extents, Rule::Equal(0));
    }
    field("aformat", core.aformat, Rule::OneOf(&[1, 2, 3]))?;
    match format {
        ForkFormat::Local => {
            field("naextents", extents, Rule::Equal(0))?;
            crate::attr::check_shortform(room, geometry)
        }
        ForkFormat::Extents => check_extents(extents, room, geometry, false),
        ForkFormat::Btree => check_btree(extents, room, geometry),
        ForkFormat::Dev | ForkFormat::Uuid | ForkFormat::MetaBtree => Ok(()),
    }
}

fn records_max(room: &[u8]) -> u64 {
    let most = count_of::<BmapRecord>(room.len());
    u64::try_from(most).unwrap_or_default()
}

fn check_extents(count: u64, room: &[u8], geometry: &Geometry, is_realtime: bool) -> Checked {
    field("nextents", count, Rule::AtMost(records_max(room)))?;
    let records = view::slice::<BmapRecord>(room, 0, to_len(count)).unwrap_or_default();
    let mut end = 0;
    for (slot, record) in records.iter().enumerate() {
        let extent = record.extent();
        if !is_realtime {
            crate::btree::check_extent(&extent, geometry).map_err(|fault| fault.in_slot(slot))?;
        }
        field("startoff", extent.offset.get(), Rule::AtLeast(end)).map_err(|fault| fault.in_slot(slot))?;
        end = extent.end().get();
    }
    Ok(())
}

fn check_btree(count: u64, room: &[u8], geometry: &Geometry) -> Checked {
    // What fits the inode is a list there.
    field("nextents", count, Rule::AtLeast(records_max(room).saturating_add(1)))?;
    BmdrRoot::check(room, geometry)
}
