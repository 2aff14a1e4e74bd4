//! Blocks of a symlink's target, where it does not fit the inode.

use crate::corrupt::Checked;
use crate::header::{Expect, Kind, verified_block};

pub use crate::attr::AttrRemoteHeader as SymlinkHeader;

/// `XSLM`.
pub const SYMLINK_MAGIC: u32 = 0x5853_4c4d;
/// The longest target.
pub const SYMLINK_BYTES_MAX: u32 = 1024;

fn kind(is_v5: bool) -> Kind {
    crate::attr::remote_kind("symlink block", SYMLINK_MAGIC, is_v5)
}

fn check(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    crate::attr::check_part(bytes, expect, SYMLINK_BYTES_MAX.into())
}

verified_block!(
    /// A verified block of a symlink's target.
    SymlinkBlock { kind: kind, size: crate::attr::remote_size, check: check }
);

impl SymlinkBlock {
    /// The part of the target in this block. On V4 the last block has bytes behind the end.
    pub fn part(&self) -> &[u8] {
        crate::attr::remote_part(&self.bytes, self.is_v5)
    }
    /// Where in the target the part begins; V4 does not say.
    pub fn offset_bytes(&self) -> Option<u32> {
        crate::attr::remote_part_offset(&self.bytes, self.is_v5)
    }
    /// Lays a part of a target out, ready to be sealed. `None` where it does not fit.
    pub fn build(offset_bytes: u32, part: &[u8], expect: &Expect<'_>) -> Option<Vec<u8>> {
        crate::attr::build_remote_part(&kind(expect.geometry.is_v5()), offset_bytes, part, expect)
    }
}
