//! Inodes: a core of fixed fields, then the data fork, then the attribute fork.
//!
//! Versions 1 and 2 (V4) have a core of 100 bytes, version 3 (V5) one of 176 with checksum and
//! owner. All share the first 100 bytes, so they are read through one structure.

mod fork;
mod time;
mod verify;

use std::fmt;
use std::mem::offset_of;
use std::sync::Arc;

use cowshed_layout::on_disk;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::Corrupt;
use crate::crc;
use crate::features::{inode_flags, inode_flags2};
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField, stamp};
use crate::ids::{AgIno, Ino, Lsn, Uuid};
use crate::num::to_len;
use crate::view;

pub use fork::{Fork, ForkFormat, ForkKind};
pub use time::{BIGTIME_EPOCH_SEC, Timestamp};

on_disk!(
    /// `xfs_dinode` of version 3; versions 1 and 2 end behind `next_unlinked`.
    /// docs/format/xfs/inodes.md
    InodeCore(176) {
        magic: U16,
        mode: U16,
        version: u8,
        format: u8,
        onlink: U16,
        uid: U32,
        gid: U32,
        nlink: U32,
        projid_lo: U16,
        projid_hi: U16,
        big_nextents: U64,
        atime: U64,
        mtime: U64,
        ctime: U64,
        size: U64,
        nblocks: U64,
        extsize: U32,
        nextents: U32,
        anextents: U16,
        forkoff: u8,
        aformat: u8,
        dmevmask: U32,
        dmstate: U16,
        flags: U16,
        generation: U32,
        next_unlinked: U32,
        crc: [u8; 4],
        changecount: U64,
        lsn: U64,
        flags2: U64,
        cowextsize: U32,
        pad2: [u8; 12],
        crtime: U64,
        ino: U64,
        uuid: Uuid,
    }
);
on_disk!(
    /// `xfs_dinode` of versions 1 and 2.
    /// docs/format/xfs/inodes.md
    InodeCoreV2(100) {
        magic: U16,
        mode: U16,
        version: u8,
        format: u8,
        onlink: U16,
        uid: U32,
        gid: U32,
        nlink: U32,
        projid_lo: U16,
        projid_hi: U16,
        pad: [u8; 6],
        flushiter: U16,
        atime: U64,
        mtime: U64,
        ctime: U64,
        size: U64,
        nblocks: U64,
        extsize: U32,
        nextents: U32,
        anextents: U16,
        forkoff: u8,
        aformat: u8,
        dmevmask: U32,
        dmstate: U16,
        flags: U16,
        generation: U32,
        next_unlinked: U32,
    }
);
const _: () = assert!(offset_of!(InodeCore, crc) == size_of::<InodeCoreV2>());
const _: () = assert!(offset_of!(InodeCore, size) == 56 && offset_of!(InodeCore, forkoff) == 82);

/// `magic`: `IN`.
pub const INODE_MAGIC: u16 = 0x494e;
/// Bytes of the core of versions 1 and 2.
pub const CORE_BYTES_V2: usize = size_of::<InodeCoreV2>();
/// Bytes of the core of version 3.
pub const CORE_BYTES_V3: usize = size_of::<InodeCore>();
/// `forkoff` counts units of 8 bytes.
const FORKOFF_BYTES: usize = 8;

/// Types of files in `mode`.
pub mod mode {
    /// The bits of the type.
    pub const TYPE_MASK: u16 = 0o170_000;
    /// A named pipe.
    pub const FIFO: u16 = 0o010_000;
    /// A character device.
    pub const CHAR: u16 = 0o020_000;
    /// A directory.
    pub const DIR: u16 = 0o040_000;
    /// A block device.
    pub const BLOCK: u16 = 0o060_000;
    /// A file.
    pub const REGULAR: u16 = 0o100_000;
    /// A symlink.
    pub const SYMLINK: u16 = 0o120_000;
    /// A socket.
    pub const SOCKET: u16 = 0o140_000;
    /// All types.
    pub const TYPES: &[u64] = &[
        0o010_000, 0o020_000, 0o040_000, 0o060_000, 0o100_000, 0o120_000, 0o140_000,
    ];
}

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

/// Bytes before the data fork.
pub fn core_bytes(is_v5: bool) -> usize {
    if is_v5 { CORE_BYTES_V3 } else { CORE_BYTES_V2 }
}

impl InodeCore {
    /// The type of the file: a value of [`mode`]; 0 for a free inode.
    pub fn file_type(&self) -> u16 {
        self.mode.get() & mode::TYPE_MASK
    }
    /// A bit of [`inode_flags`].
    pub fn has_flag(&self, bit: u64) -> bool {
        u64::from(self.flags.get()) & bit != 0
    }
    /// A bit of [`inode_flags2`]; version 3 alone has them.
    pub fn has_flag2(&self, bit: u64) -> bool {
        self.version >= 3 && self.flags2.get() & bit != 0
    }
    /// True where the data lies on the realtime device.
    pub fn is_realtime(&self) -> bool {
        self.has_flag(inode_flags::REALTIME)
    }
    /// True where times are counters of nanoseconds.
    pub fn is_bigtime(&self) -> bool {
        self.has_flag2(inode_flags2::BIGTIME)
    }
    /// True where counts of extents have 48 and 32 bits.
    pub fn is_nrext64(&self) -> bool {
        self.has_flag2(inode_flags2::NREXT64)
    }
    /// Names of the inode.
    pub fn link_count(&self) -> u32 {
        if self.version == 1 {
            self.onlink.get().into()
        } else {
            self.nlink.get()
        }
    }
    /// The project's number.
    pub fn project_id(&self) -> u32 {
        u32::from(self.projid_hi.get()) << 16 | u32::from(self.projid_lo.get())
    }
    /// Extents of the data fork.
    pub fn data_extents(&self) -> u64 {
        if self.is_nrext64() {
            self.big_nextents.get()
        } else {
            self.nextents.get().into()
        }
    }
    /// Extents of the attribute fork.
    pub fn attr_extents(&self) -> u32 {
        if self.is_nrext64() {
            // The field of 32 bits counts them there.
            self.nextents.get()
        } else {
            self.anextents.get().into()
        }
    }
    /// Sets both counts. False where one does not fit.
    #[must_use]
    pub fn set_extents(&mut self, data: u64, attr: u32) -> bool {
        if self.is_nrext64() {
            self.big_nextents.set(data);
            self.nextents.set(attr);
            self.anextents.set(0);
            return data < 1 << 48;
        }
        let (Ok(data), Ok(attr)) = (u32::try_from(data), u16::try_from(attr)) else {
            return false;
        };
        self.nextents.set(data);
        self.anextents.set(attr);
        true
    }
    /// A time field by the inode's format.
    pub fn time(&self, raw: U64) -> Timestamp {
        Timestamp::decode(raw.get(), self.is_bigtime())
    }
    /// Where the attribute fork begins behind the core, in bytes; 0 where there is none.
    pub fn attr_fork_at(&self) -> usize {
        usize::from(self.forkoff).saturating_mul(FORKOFF_BYTES)
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
