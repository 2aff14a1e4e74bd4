//! Inodes: a core of fixed fields, then the data fork, then the attribute fork.
//!
//! Versions 1 and 2 (V4) have a core of 100 bytes, version 3 (V5) one of 176 with checksum and
//! owner. All share the first 100 bytes, so they are read through one structure.

mod core;
mod fork;
mod time;
mod verify;

use std::fmt;
use std::mem::offset_of;
use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

use self::core::FORKOFF_BYTES;
use crate::corrupt::Corrupt;
use crate::crc;
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField, stamp};
use crate::ids::{AgIno, Ino, Lsn};
use crate::num::to_len;
use crate::view;

pub use self::core::{CORE_BYTES_V2, CORE_BYTES_V3, INODE_MAGIC, InodeCore, InodeCoreV2, core_bytes, mode};
pub use fork::{Fork, ForkFormat, ForkKind};
pub use time::{BIGTIME_EPOCH_SEC, Timestamp};

fn kind(is_v5: bool) -> Kind {
    Kind {
        name: "inode",
        magic: Some(Magic::Narrow(offset_of!(InodeCore, magic), INODE_MAGIC)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(InodeCore, crc),
            uuid: offset_of!(InodeCore, uuid),
            lsn: Some(offset_of!(InodeCore, lsn)),
            daddr: None,
            owner: Some(OwnerField::Inode(offset_of!(InodeCore, ino))),
        }),
    }
}

/// A verified inode, free or in use.
///
/// Cheap to clone. Bytes are immutable.
#[derive(Clone, PartialEq, Eq)]
pub struct Inode {
    bytes: Arc<[u8]>,
    is_v5: bool,
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.core();
        write!(f, "Inode(mode {:o} size {})", core.mode, core.size)
    }
}

impl Inode {
    /// Verifies the bytes of one inode, cut out of its cluster; `expect.daddr` is the address of
    /// the block. Errors: the first fault found.
    pub fn verify(bytes: impl Into<Arc<[u8]>>, expect: &Expect<'_>) -> Result<Self, Corrupt> {
        let bytes = bytes.into();
        let geometry = expect.geometry;
        crate::header::verify(&kind(geometry.is_v5()), &bytes, geometry.inode_bytes, expect, |bytes| {
            verify::inode(bytes, expect)
        })?;
        Ok(Self {
            bytes,
            is_v5: geometry.is_v5(),
        })
    }

    /// Verifies an inode that was built here as if it came from a device, stamps `lsn`, and stores
    /// its checksum. Only the result may be written. Errors: what [`Self::verify`] refuses.
    pub fn seal(mut bytes: Vec<u8>, expect: &Expect<'_>, lsn: Lsn) -> Result<Self, Corrupt> {
        let geometry = expect.geometry;
        let kind = kind(geometry.is_v5());
        crate::header::seal(&kind, &mut bytes, geometry.inode_bytes, expect, lsn, |bytes| {
            verify::inode(bytes, expect)
        })?;
        Ok(Self {
            bytes: bytes.into(),
            is_v5: geometry.is_v5(),
        })
    }

    /// Lays an inode out, ready to be sealed: magic, uuid and number come from `expect`. The forks
    /// are as they lie on disk. `None` where they do not fit, or contradict `forkoff`.
    pub fn build(core: &InodeCore, data: &[u8], attr: &[u8], expect: &Expect<'_>) -> Option<Vec<u8>> {
        let geometry = expect.geometry;
        let core_bytes = core_bytes(geometry.is_v5());
        let mut bytes = vec![0; to_len(geometry.inode_bytes.into())];
        let attr_at = usize::from(core.forkoff).checked_mul(FORKOFF_BYTES)?;
        let room = bytes.len().checked_sub(core_bytes)?;
        let data_room = if attr_at == 0 { room } else { attr_at.min(room) };
        let fits = view::put(&mut bytes, 0, core.as_bytes().get(..core_bytes)?)
            && data.len() <= data_room
            && view::put(&mut bytes, core_bytes, data)
            && (attr.is_empty() || attr_at != 0)
            && view::put(&mut bytes, core_bytes.checked_add(attr_at)?, attr);
        stamp(&kind(geometry.is_v5()), &mut bytes, expect);
        fits.then_some(bytes)
    }

    /// The bytes of an inode that was never used: magic, version, number, and nothing else. What a
    /// new chunk is filled with.
    pub fn build_free(generation: u32, expect: &Expect<'_>) -> Option<Vec<u8>> {
        use zerocopy::FromZeros as _;
        let mut core = InodeCore::new_zeroed();
        core.version = if expect.geometry.is_v5() { 3 } else { 2 };
        core.generation.set(generation);
        core.next_unlinked.set(AgIno::NULL);
        Self::build(&core, &[], &[], expect)
    }

    /// The whole inode, as it is written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// True for version 3.
    pub fn is_v5(&self) -> bool {
        self.is_v5
    }
    /// The core. Of versions 1 and 2 the fields behind `next_unlinked` are zero, and
    /// [`Inode::core_v2`] has the ones that differ.
    pub fn core(&self) -> InodeCore {
        let mut core = [0; CORE_BYTES_V3];
        for (to, from) in core.iter_mut().zip(self.bytes.iter().take(core_bytes(self.is_v5))) {
            *to = *from;
        }
        zerocopy::transmute!(core)
    }
    /// The core of versions 1 and 2.
    #[allow(clippy::expect_used, reason = "a verified inode holds it")]
    pub fn core_v2(&self) -> &InodeCoreV2 {
        view::at(&self.bytes, 0).expect("a verified inode holds a core")
    }
    /// The inode's number, on V5.
    pub fn ino(&self) -> Option<Ino> {
        self.is_v5.then(|| Ino(self.core().ino.get()))
    }

    /// The room of a fork, in use or not. The attribute fork has none where `forkoff` is 0.
    pub fn fork_bytes(&self, kind: ForkKind) -> &[u8] {
        let core = core_bytes(self.is_v5);
        let forks = self.bytes.get(core..).unwrap_or_default();
        let forkoff = self.core_v2().forkoff;
        match fork::split(forks, forkoff) {
            Some((data, _)) if kind == ForkKind::Data => data,
            Some((_, attr)) => attr,
            None => &[],
        }
    }
    /// A fork. `None` for an attribute fork that is not there, and for both of a free inode.
    pub fn fork(&self, kind: ForkKind) -> Option<Fork<'_>> {
        let core = self.core();
        if core.mode.get() == 0 || (kind == ForkKind::Attr && core.forkoff == 0) {
            return None;
        }
        Fork::read(self.fork_bytes(kind), &core, kind)
    }
}

/// Stores a new `next_unlinked` in an inode of a cluster, and the checksum.
pub fn set_next_unlinked(inode: &mut [u8], next: Option<AgIno>, geometry: &Geometry) -> bool {
    let next = U32::new(next.map_or(AgIno::NULL, AgIno::get));
    if !view::put(inode, offset_of!(InodeCore, next_unlinked), next.as_bytes()) {
        return false;
    }
    if geometry.is_v5() {
        crc::store(inode, offset_of!(InodeCore, crc));
    }
    true
}
