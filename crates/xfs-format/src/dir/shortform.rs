//! The shortform: a directory in its inode. Entries keep the places that they have in the block
//! form, so positions survive the change of form.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::data::{DirBlockTail, data_header_bytes, entry_bytes};
use super::index::DirLeafEntry;
use super::{DirEntry, FileType};
use crate::corrupt::{Checked, Corrupt, Fault, Site, check_name, field, mismatch, truncated};
use crate::geometry::Geometry;
use crate::ids::Ino;
use crate::num::to_len;
use crate::view;

on_disk!(
    /// `xfs_dir2_sf_hdr`: the fixed part; the parent follows in 4 or 8 bytes.
    /// docs/format/xfs/directories.md
    ShortformHead(2) { count: u8, i8count: u8 }
);
on_disk!(
    /// `xfs_dir2_sf_entry`: the fixed part; name, type and inode follow.
    /// docs/format/xfs/directories.md
    ShortformEntry(3) { namelen: u8, offset: U16 }
);

/// A shortform directory.
#[derive(Clone, Copy, Debug)]
pub struct ShortformDir<'a> {
    /// The directory above.
    pub parent: Ino,
    count: u8,
    is_wide: bool,
    entries: &'a [u8],
    has_ftype: bool,
}

fn read_ino(bytes: &[u8], is_wide: bool) -> Option<Ino> {
    if is_wide {
        view::at::<U64>(bytes, 0).map(|ino| Ino(ino.get()))
    } else {
        view::at::<U32>(bytes, 0).map(|ino| Ino(ino.get().into()))
    }
}

fn ino_bytes(is_wide: bool) -> usize {
    if is_wide { size_of::<U64>() } else { size_of::<U32>() }
}

/// The first place that an entry can have: behind the header, "." and "..".
pub fn first_entry_offset(geometry: &Geometry) -> usize {
    let own = entry_bytes(1, geometry.has_ftype()).saturating_add(entry_bytes(2, geometry.has_ftype()));
    data_header_bytes(geometry.is_v5()).saturating_add(own)
}

impl<'a> ShortformDir<'a> {
    /// Reads the contents of an inode's data fork, which is `size` bytes long. `None` where it has
    /// no header. [`Self::verify`] checks it first.
    pub fn read(bytes: &'a [u8], geometry: &Geometry) -> Option<Self> {
        let head = view::at::<ShortformHead>(bytes, 0)?;
        let is_wide = head.i8count != 0;
        let parent_at = size_of::<ShortformHead>();
        Some(Self {
            parent: read_ino(bytes.get(parent_at..)?, is_wide)?,
            count: head.count,
            is_wide,
            entries: bytes.get(parent_at.checked_add(ino_bytes(is_wide))?..)?,
            has_ftype: geometry.has_ftype(),
        })
    }

    /// Checks all of it. Errors: the first fault found.
    pub fn verify(bytes: &'a [u8], geometry: &Geometry, ino: Ino) -> Result<Self, Corrupt> {
        let site = Site {
            ino: Some(ino),
            ..Site::of("shortform directory")
        };
        check_shortform(bytes, geometry).map_err(|fault| fault.at(site))?;
        Self::read(bytes, geometry).ok_or_else(|| truncated("header", 2, bytes.len()).at(site))
    }

    /// Number of entries; "." and ".." have none.
    pub fn len(&self) -> usize {
        self.count.into()
    }
    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// True where inode numbers take 8 bytes.
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }
    /// The entries in the order of their places. Ends at the first one that does not fit.
    pub fn entries(&self) -> impl Iterator<Item = DirEntry<'a>> + use<'a> {
        let (mut rest, dir) = (self.entries, *self);
        (0..self.count).map_while(move |_| {
            let (entry, behind) = dir.split(rest).ok()?;
            rest = behind;
            Some(entry)
        })
    }

    /// The first entry, and what follows it.
    fn split(&self, bytes: &'a [u8]) -> Result<(DirEntry<'a>, &'a [u8]), Fault> {
        let head = view::at::<ShortformEntry>(bytes, 0)
            .ok_or_else(|| truncated("entry", size_of::<ShortformEntry>(), bytes.len()))?;
        let name_len = usize::from(head.namelen);
        let type_at = size_of::<ShortformEntry>().saturating_add(name_len);
        let ino_at = type_at.saturating_add(usize::from(self.has_ftype));
        let len = ino_at.saturating_add(ino_bytes(self.is_wide));
        let (Some((whole, rest)), true) = (bytes.split_at_checked(len), len > 0) else {
            return Err(truncated("entry", len, bytes.len()));
        };
        let raw_type = self.has_ftype.then(|| whole.get(type_at).copied()).flatten();
        if let Some(raw) = raw_type {
            field("ftype", raw, Rule::AtMost(FileType::Whiteout.to_raw().into()))?;
        }
        let entry = DirEntry {
            offset_bytes: head.offset.get().into(),
            ino: read_ino(whole.get(ino_at..).unwrap_or_default(), self.is_wide).unwrap_or_default(),
            name: whole.get(size_of::<ShortformEntry>()..type_at).unwrap_or_default(),
            file_type: raw_type.map(|raw| FileType::from_raw(raw).unwrap_or(FileType::Unknown)),
        };
        Ok((entry, rest))
    }
}

/// Inode numbers that need 8 bytes.
fn is_large(ino: Ino) -> bool {
    ino.get() > u32::MAX.into()
}

fn check_shortform(bytes: &[u8], geometry: &Geometry) -> Checked {
    let short = || truncated("header", size_of::<ShortformHead>().saturating_add(4), bytes.len());
    let head = view::at::<ShortformHead>(bytes, 0).ok_or_else(short)?;
    let dir = ShortformDir::read(bytes, geometry).ok_or_else(short)?;
    if !geometry.is_inode(dir.parent) {
        return Err(mismatch("parent", dir.parent, "an inode of the volume"));
    }
    let mut rest = dir.entries;
    let mut offset = first_entry_offset(geometry);
    let mut large = u64::from(is_large(dir.parent));
    for slot in 0..dir.len() {
        let check = || -> Result<_, Fault> {
            let (entry, behind) = dir.split(rest)?;
            check_name(entry.name)?;
            if !geometry.is_inode(entry.ino) {
                return Err(mismatch("inumber", entry.ino, "an inode of the volume"));
            }
            let least = u64::try_from(offset).unwrap_or(u64::MAX);
            field("offset", entry.offset_bytes, Rule::AtLeast(least))?;
            field("offset", entry.offset_bytes, Rule::AlignedTo(8))?;
            Ok((entry, behind))
        };
        let (entry, behind) = check().map_err(|fault| fault.in_slot(slot))?;
        offset = to_len(entry.offset_bytes.into()).saturating_add(entry_bytes(entry.name.len(), geometry.has_ftype()));
        large = large.saturating_add(u64::from(is_large(entry.ino)));
        rest = behind;
    }
    field("i8count", head.i8count, Rule::Equal(large))?;
    field("size", u64::try_from(rest.len()).unwrap_or(u64::MAX), Rule::Equal(0))?;
    // As a block it must have room for the hashes.
    let leaf = dir.len().saturating_add(2).saturating_mul(size_of::<DirLeafEntry>());
    let needs = offset.saturating_add(leaf).saturating_add(size_of::<DirBlockTail>());
    let needs = u64::try_from(needs).unwrap_or(u64::MAX);
    field("offset", needs, Rule::AtMost(geometry.dir_block_bytes.into()))
}

/// Lays a shortform directory out. `None` where a count does not fit; whether it fits the inode is
/// the caller's to see.
pub fn build_shortform(parent: Ino, entries: &[DirEntry<'_>], geometry: &Geometry) -> Option<Vec<u8>> {
    let numbers = entries.iter().map(|entry| entry.ino).chain([parent]);
    let large = numbers.filter(|ino| is_large(*ino)).count();
    let head = ShortformHead {
        count: u8::try_from(entries.len()).ok()?,
        i8count: u8::try_from(large).ok()?,
    };
    let mut bytes = head.as_bytes().to_vec();
    let put_ino = |bytes: &mut Vec<u8>, ino: Ino| match u32::try_from(ino.get()) {
        Ok(ino) if large == 0 => bytes.extend(ino.to_be_bytes()),
        _ => bytes.extend(ino.get().to_be_bytes()),
    };
    put_ino(&mut bytes, parent);
    for entry in entries {
        let head = ShortformEntry {
            namelen: u8::try_from(entry.name.len()).ok()?,
            offset: U16::new(u16::try_from(entry.offset_bytes).ok()?),
        };
        bytes.extend(head.as_bytes());
        bytes.extend(entry.name);
        if geometry.has_ftype() {
            bytes.push(entry.file_type.unwrap_or(FileType::Unknown).to_raw());
        }
        put_ino(&mut bytes, entry.ino);
    }
    Some(bytes)
}
