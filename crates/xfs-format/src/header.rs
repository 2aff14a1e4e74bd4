//! What identifies a block: magic, checksum, uuid, owner, address, LSN. The same checks for every
//! kind of block, on the way in and on the way out.
//!
//! On V4 a block has nothing but its magic, and some kinds have not even that.

use crate::corrupt::{Checked, Corrupt, CorruptKind, Fault, Site, mismatch, wrong_size};
use crate::crc;
use crate::geometry::Geometry;
use crate::ids::{AgNumber, Daddr, Ino, Lsn};
use crate::num::to_len;

/// What a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// An allocation group.
    Ag(AgNumber),
    /// An inode.
    Inode(Ino),
}

/// What the reader or writer of a block knows about it.
#[derive(Clone, Copy, Debug)]
pub struct Expect<'a> {
    /// The volume.
    pub geometry: &'a Geometry,
    /// The address that led to the block.
    pub daddr: Daddr,
    /// What it belongs to; `None` where that is not known.
    pub owner: Option<Owner>,
    /// The head of the log: no block may be ahead of it. `None` where it is not known.
    pub head: Option<Lsn>,
}

impl<'a> Expect<'a> {
    /// A block of an allocation group.
    pub fn in_ag(geometry: &'a Geometry, daddr: Daddr, group: AgNumber) -> Self {
        Self {
            geometry,
            daddr,
            owner: Some(Owner::Ag(group)),
            head: None,
        }
    }
    /// A block of an inode.
    pub fn of_inode(geometry: &'a Geometry, daddr: Daddr, ino: Ino) -> Self {
        Self {
            geometry,
            daddr,
            owner: Some(Owner::Inode(ino)),
            head: None,
        }
    }
    /// With the head of the log.
    pub fn with_head(self, head: Lsn) -> Self {
        Self {
            head: Some(head),
            ..self
        }
    }

    /// The allocation group, from the owner or from the address.
    pub(crate) fn group(&self) -> Option<AgNumber> {
        match self.owner {
            Some(Owner::Ag(group)) => Some(group),
            _ => self.geometry.block_at(self.daddr).map(|(group, _)| group),
        }
    }
    /// The inode, where the block belongs to one.
    pub(crate) fn ino(&self) -> Option<Ino> {
        match self.owner {
            Some(Owner::Inode(ino)) => Some(ino),
            _ => None,
        }
    }
    pub(crate) fn site(&self, what: &'static str) -> Site {
        Site {
            daddr: Some(self.daddr),
            ino: self.ino(),
            ..Site::of(what)
        }
    }
}

/// Where a kind of block has its magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Magic {
    /// Four bytes at this place.
    Wide(usize, u32),
    /// Two bytes at this place.
    Narrow(usize, u16),
}

/// Where a kind of block has an owner, and how wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerField {
    /// 32 bits: an allocation group.
    Ag(usize),
    /// 64 bits: an inode.
    Inode(usize),
}

/// Where a kind of block has what identifies it, in bytes from its start. Made from the offsets of
/// the structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub crc: usize,
    pub uuid: usize,
    pub lsn: Option<usize>,
    pub daddr: Option<usize>,
    pub owner: Option<OwnerField>,
}

/// A kind of block: its name for messages, its magic, and on V5 its identity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub name: &'static str,
    pub magic: Option<Magic>,
    pub identity: Option<Identity>,
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let (field, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u16::from_be_bytes(*field))
}
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let (field, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u32::from_be_bytes(*field))
}
pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    let (field, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u64::from_be_bytes(*field))
}
fn store(bytes: &mut [u8], at: usize, value: &[u8]) {
    let place = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..value.len()));
    if let Some(place) = place {
        place.copy_from_slice(value);
    }
}

/// Checks size, magic and checksum. The checksum is for blocks from a device alone.
fn check_frame(kind: &Kind, bytes: &[u8], size_bytes: u32, with_crc: bool) -> Checked {
    let expected = to_len(size_bytes.into());
    if bytes.len() != expected {
        return Err(wrong_size(bytes.len(), expected));
    }
    check_magic(kind, bytes)?;
    match kind.identity {
        Some(identity) if with_crc => check_crc(bytes, identity.crc),
        _ => Ok(()),
    }
}

fn check_magic(kind: &Kind, bytes: &[u8]) -> Checked {
    let (found, expected) = match kind.magic {
        None => return Ok(()),
        Some(Magic::Wide(at, magic)) => (be32(bytes, at), magic),
        Some(Magic::Narrow(at, magic)) => (be16(bytes, at).map(u32::from), u32::from(magic)),
    };
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.unwrap_or_default();
    Err(CorruptKind::Magic { found, expected }.into())
}

pub(crate) fn check_crc(bytes: &[u8], at: usize) -> Checked {
    match (crc::stored(bytes, at), crc::compute(bytes, at)) {
        (Some(stored), Some(computed)) if stored == computed => Ok(()),
        (Some(stored), Some(computed)) => Err(CorruptKind::Crc { stored, computed }.into()),
        _ => Err(wrong_size(bytes.len(), at.saturating_add(crc::CRC_BYTES))),
    }
}

/// Checks uuid, owner, address and LSN.
fn check_identity(kind: &Kind, bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let Some(identity) = kind.identity else { return Ok(()) };
    let uuid = bytes.get(identity.uuid..).and_then(|rest| rest.get(..16));
    if uuid != Some(&expect.geometry.uuid[..]) {
        let found = cowshed_layout::hex(uuid.unwrap_or_default());
        return Err(mismatch("uuid", found, cowshed_layout::hex(&expect.geometry.uuid)));
    }
    if let Some(at) = identity.daddr {
        let found = be64(bytes, at).unwrap_or_default();
        if found != expect.daddr.get() {
            return Err(mismatch("blkno", found, expect.daddr));
        }
    }
    let (found, expected) = match (identity.owner, expect.owner) {
        (Some(OwnerField::Ag(at)), Some(Owner::Ag(group))) => (be32(bytes, at).map(u64::from), u64::from(group.get())),
        (Some(OwnerField::Inode(at)), Some(Owner::Inode(ino))) => (be64(bytes, at), ino.get()),
        (Some(OwnerField::Ag(at)), Some(Owner::Inode(ino))) => {
            return Err(mismatch("owner", be32(bytes, at).unwrap_or_default(), ino));
        }
        (Some(OwnerField::Inode(at)), Some(Owner::Ag(group))) => {
            return Err(mismatch("owner", be64(bytes, at).unwrap_or_default(), group));
        }
        (None, _) | (_, None) => (None, 0),
    };
    if found.is_some_and(|found| found != expected) {
        return Err(mismatch("owner", found.unwrap_or_default(), expected));
    }
    match identity.lsn {
        Some(at) => check_lsn(Lsn(be64(bytes, at).unwrap_or_default()), expect.head),
        None => Ok(()),
    }
}

/// An LSN is not ahead of the head of the log: what is there was never written yet, and recovery
/// would take the block for newer than its images in the log.
pub(crate) fn check_lsn(lsn: Lsn, head: Option<Lsn>) -> Checked {
    match head {
        Some(head) if lsn != Lsn::NULL && lsn > head => Err(mismatch("lsn", lsn, format_args!("at most {head}"))),
        _ => Ok(()),
    }
}

/// Checks a block from a device: size, magic, checksum, identity, then what `contents` checks.
pub(crate) fn verify(
    kind: &Kind,
    bytes: &[u8],
    size_bytes: u32,
    expect: &Expect<'_>,
    contents: impl FnOnce(&[u8]) -> Checked,
) -> Result<(), Corrupt> {
    let check = || -> Result<(), Fault> {
        check_frame(kind, bytes, size_bytes, true)?;
        check_identity(kind, bytes, expect)?;
        contents(bytes)
    };
    check().map_err(|fault| fault.at(expect.site(kind.name)))
}

/// Checks a block that is about to be written as if it came from a device, and stamps LSN and
/// checksum. On V4 there is nothing to stamp.
pub(crate) fn seal(
    kind: &Kind,
    bytes: &mut [u8],
    size_bytes: u32,
    expect: &Expect<'_>,
    lsn: Lsn,
    contents: impl FnOnce(&[u8]) -> Checked,
) -> Result<(), Corrupt> {
    let site = expect.site(kind.name);
    check_frame(kind, bytes, size_bytes, false).map_err(|fault| fault.at(site))?;
    if let Some(at) = kind.identity.and_then(|identity| identity.lsn) {
        store(bytes, at, &lsn.get().to_be_bytes());
    }
    check_identity(kind, bytes, expect).map_err(|fault| fault.at(site))?;
    contents(bytes).map_err(|fault| fault.at(site))?;
    if let Some(identity) = kind.identity {
        crc::store(bytes, identity.crc);
    }
    Ok(())
}

/// Writes magic, uuid, address and owner into a block under construction.
pub(crate) fn stamp(kind: &Kind, bytes: &mut [u8], expect: &Expect<'_>) {
    match kind.magic {
        None => {}
        Some(Magic::Wide(at, magic)) => store(bytes, at, &magic.to_be_bytes()),
        Some(Magic::Narrow(at, magic)) => store(bytes, at, &magic.to_be_bytes()),
    }
    let Some(identity) = kind.identity else { return };
    store(bytes, identity.uuid, &expect.geometry.uuid);
    if let Some(at) = identity.daddr {
        store(bytes, at, &expect.daddr.get().to_be_bytes());
    }
    match (identity.owner, expect.owner) {
        (Some(OwnerField::Ag(at)), Some(Owner::Ag(group))) => store(bytes, at, &group.get().to_be_bytes()),
        (Some(OwnerField::Inode(at)), Some(Owner::Inode(ino))) => store(bytes, at, &ino.get().to_be_bytes()),
        _ => {}
    }
}

/// Declares a type for a verified block of one kind: how it is verified, sealed and taken apart.
///
/// `kind` gives the [`Kind`] on a volume, `size` its bytes there, `check` checks the contents.
macro_rules! verified_block {
    ($(#[$meta:meta])* $name:ident { kind: $kind:expr, size: $size:expr, check: $check:expr $(,)? }) => {
        $(#[$meta])*
        ///
        /// Cheap to clone. Bytes are immutable.
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name {
            bytes: std::sync::Arc<[u8]>,
            is_v5: bool,
        }

        impl $name {
            /// Verifies bytes from a device: size, magic, checksum, identity and contents. Errors:
            /// the first fault found.
            pub fn verify(
                bytes: impl Into<std::sync::Arc<[u8]>>,
                expect: &$crate::Expect<'_>,
            ) -> Result<Self, $crate::Corrupt> {
                let bytes = bytes.into();
                let geometry = expect.geometry;
                $crate::header::verify(&$kind(geometry.is_v5()), &bytes, $size(geometry), expect, |bytes| {
                    $check(bytes, expect)
                })?;
                Ok(Self { bytes, is_v5: geometry.is_v5() })
            }

            /// Verifies a block that was built here as if it came from a device, stamps `lsn`, and
            /// stores its checksum. Only the result may be written. Errors: what
            /// [`Self::verify`] refuses.
            pub fn seal(
                mut bytes: Vec<u8>,
                expect: &$crate::Expect<'_>,
                lsn: $crate::Lsn,
            ) -> Result<Self, $crate::Corrupt> {
                let geometry = expect.geometry;
                let kind = $kind(geometry.is_v5());
                $crate::header::seal(&kind, &mut bytes, $size(geometry), expect, lsn, |bytes| {
                    $check(bytes, expect)
                })?;
                Ok(Self { bytes: bytes.into(), is_v5: geometry.is_v5() })
            }

            /// The whole block, as it is written.
            pub fn bytes(&self) -> &[u8] {
                &self.bytes
            }
            /// True on a volume of V5, where the block has a long header.
            pub fn is_v5(&self) -> bool {
                self.is_v5
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({} bytes)"), self.bytes.len())
            }
        }
    };
}
pub(crate) use verified_block;
