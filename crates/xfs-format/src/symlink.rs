//! Parts of a symlink's target, where it does not fit the inode. Each extent of the symlink holds
//! one part: on V5 with one header, whatever the number of blocks.

use std::fmt;
use std::sync::Arc;

use cowshed_layout::Rule;

use crate::attr;
use crate::corrupt::{Checked, Corrupt, field};
use crate::header::{self, Expect, Kind};
use crate::ids::Lsn;

pub use crate::attr::AttrRemoteHeader as SymlinkHeader;

/// `XSLM`.
pub const SYMLINK_MAGIC: u32 = 0x5853_4c4d;
/// The longest target.
pub const SYMLINK_BYTES_MAX: u32 = 1024;
/// The longest extent of a symlink: one block of the largest size.
pub const SYMLINK_EXTENT_BYTES_MAX: u64 = 65536;

fn kind(is_v5: bool) -> Kind {
    attr::remote_kind("symlink block", SYMLINK_MAGIC, is_v5)
}

fn check(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let rule = Rule::Between(expect.geometry.block_bytes.into(), SYMLINK_EXTENT_BYTES_MAX);
    field("blockcount", len, rule)?;
    field("blockcount", len, Rule::MultipleOf(expect.geometry.block_bytes.into()))?;
    attr::check_part(bytes, expect, SYMLINK_BYTES_MAX.into())
}

/// A verified extent of a symlink's target.
///
/// Cheap to clone. Bytes are immutable.
#[derive(Clone, PartialEq, Eq)]
pub struct SymlinkBlock {
    bytes: Arc<[u8]>,
    is_v5: bool,
}

impl SymlinkBlock {
    /// Verifies the bytes of an extent from a device. Errors: the first fault found.
    pub fn verify(bytes: impl Into<Arc<[u8]>>, expect: &Expect<'_>) -> Result<Self, Corrupt> {
        let bytes = bytes.into();
        let is_v5 = expect.geometry.is_v5();
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        header::verify(&kind(is_v5), &bytes, size, expect, |bytes| check(bytes, expect))?;
        Ok(Self { bytes, is_v5 })
    }

    /// Verifies an extent that was built here as if it came from a device, stamps `lsn`, and stores
    /// its checksum. Only the result may be written. Errors: what [`Self::verify`] refuses.
    pub fn seal(mut bytes: Vec<u8>, expect: &Expect<'_>, lsn: Lsn) -> Result<Self, Corrupt> {
        let is_v5 = expect.geometry.is_v5();
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        header::seal(&kind(is_v5), &mut bytes, size, expect, lsn, |bytes| {
            check(bytes, expect)
        })?;
        Ok(Self {
            bytes: bytes.into(),
            is_v5,
        })
    }

    /// The whole extent, as it is written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The part of the target in this extent. On V4 the last one has bytes behind the end.
    pub fn part(&self) -> &[u8] {
        attr::remote_part(&self.bytes, self.is_v5)
    }
    /// Where in the target the part begins; V4 does not say.
    pub fn offset_bytes(&self) -> Option<u32> {
        attr::remote_part_offset(&self.bytes, self.is_v5)
    }
    /// Lays a part of a target out in an extent of so many blocks, ready to be sealed. `None` where
    /// it does not fit.
    pub fn build(offset_bytes: u32, part: &[u8], blocks: u32, expect: &Expect<'_>) -> Option<Vec<u8>> {
        let len = expect.geometry.block_bytes.checked_mul(blocks)?;
        attr::build_remote_part(&kind(expect.geometry.is_v5()), len, offset_bytes, part, expect)
    }
}

impl fmt::Debug for SymlinkBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SymlinkBlock({} bytes)", self.bytes.len())
    }
}
