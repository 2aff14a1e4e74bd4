//! The extents of a file: of one on a mount of ours, or in an image.

use std::fs::File;
use std::io::Result;

use cowshed::{Extent, ExtentKind};
use cowshed_vfs_ioctl::wire::{self, MapPage};
use zerocopy::FromZeros;

use super::is_unknown;
use crate::ioctl;

/// Shows all extents of a file on a mount of ours; false where it lies elsewhere.
pub fn each(file: &File, wants_shared: bool, take: &mut dyn FnMut(&Extent)) -> Result<bool> {
    let mut start = 0;
    loop {
        let mut page: MapPage = FromZeros::new_zeroed();
        page.start = start.into();
        page.end = u64::MAX.into();
        page.wants_shared = u32::from(wants_shared).into();
        match ioctl::call(file, wire::MAP, &mut page) {
            Ok(_) => {}
            Err(error) if start == 0 && is_unknown(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        let count = (page.count.get() as usize).min(page.entries.len());
        for entry in &page.entries[..count] {
            take(&Extent::from(entry));
        }
        if page.is_last.get() != 0 || count == 0 {
            return Ok(true);
        }
        start = page.start.get();
    }
}

/// Flags of `<linux/fiemap.h>`.
pub mod flag {
    pub const LAST: u32 = 0x1;
    pub const UNKNOWN: u32 = 0x2;
    pub const DELALLOC: u32 = 0x4;
    pub const ENCODED: u32 = 0x8;
    pub const NOT_ALIGNED: u32 = 0x100;
    pub const INLINE: u32 = 0x200;
    pub const UNWRITTEN: u32 = 0x800;
    pub const SHARED: u32 = 0x2000;
}

const BLOCK_BYTES: u64 = 4096;

/// One line of a map, as FIEMAP has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub logical: u64,
    pub physical: u64,
    pub len_bytes: u64,
    pub flags: u32,
}

impl Line {
    pub fn of(extent: &Extent) -> Line {
        let encoded = if extent.compression == 0 { 0 } else { flag::ENCODED };
        let shared = if extent.is_shared { flag::SHARED } else { 0 };
        let offset = if extent.compression == 0 {
            extent.offset_bytes
        } else {
            0
        };
        let (physical, len_bytes, kind) = match extent.kind {
            ExtentKind::Data => (extent.disk_addr + offset, extent.len_bytes, 0),
            ExtentKind::Unwritten => (extent.disk_addr + offset, extent.len_bytes, flag::UNWRITTEN),
            ExtentKind::Inline => (
                0,
                extent.len_bytes.next_multiple_of(BLOCK_BYTES),
                flag::INLINE | flag::NOT_ALIGNED,
            ),
            ExtentKind::Delalloc => (0, extent.len_bytes, flag::DELALLOC | flag::UNKNOWN),
        };
        Line {
            logical: extent.start,
            physical,
            len_bytes,
            flags: kind | encoded | shared,
        }
    }

    /// Takes the next one in if it goes on where this ends, in the file and on disk.
    pub fn merge(&mut self, next: &Line) -> bool {
        let is_delalloc = self.flags & flag::DELALLOC != 0;
        let continues = self.flags == next.flags
            && self.logical + self.len_bytes == next.logical
            && (is_delalloc || self.physical + self.len_bytes == next.physical);
        if continues {
            self.len_bytes += next.len_bytes;
        }
        continues
    }
}
