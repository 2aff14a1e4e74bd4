//! Ioctls of subvolumes.

use cowshed_vfs::{Access, Context, Error, IoctlReply, NodeId, Result, Volume};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::front::Front;
use crate::reply::reply;
use crate::wire::{self, Snapshot, SubvolumePage};

/// Command numbers of `<linux/btrfs.h>`.
mod cmd {
    pub(super) const SUBVOL_CREATE: u32 = 0x5000_940e;
    pub(super) const SNAP_DESTROY: u32 = 0x5000_940f;
    pub(super) const SUBVOL_CREATE_V2: u32 = 0x5000_9418;
    pub(super) const SNAP_DESTROY_V2: u32 = 0x5000_943f;
    pub(super) const SUBVOL_SETFLAGS: u32 = 0x4008_941a;
    pub(super) const INO_LOOKUP: u32 = 0xd000_9412;
}

/// Where the name begins in `struct btrfs_ioctl_vol_args`, and in its second version.
const NAME_OFFSET: usize = 8;
const NAME_OFFSET_V2: usize = 56;
/// Where the flags stand in the second version.
const FLAGS_OFFSET_V2: usize = 16;
/// `struct btrfs_ioctl_ino_lookup_args`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InoLookup {
    tree: U64,
    ino: U64,
    name: [u8; 4080],
}
/// The root directory of each subvolume.
const ROOT_INO: u64 = 256;
/// `BTRFS_SUBVOL_RDONLY`.
const RDONLY: u64 = 1 << 1;

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Errors: `NotIoctl` for commands that are not of this module, and those of the calls.
    pub(crate) fn ioctl_subvolumes(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let volume = self.volume();
        match cmd {
            cmd::SUBVOL_CREATE => volume.create_subvolume(ctx, node, name_at(input, NAME_OFFSET)?)?,
            cmd::SUBVOL_CREATE_V2 => {
                no_flags(input)?;
                volume.create_subvolume(ctx, node, name_at(input, NAME_OFFSET_V2)?)?;
            }
            cmd::SNAP_DESTROY => volume.delete_subvolume(ctx, node, name_at(input, NAME_OFFSET)?)?,
            cmd::SNAP_DESTROY_V2 => {
                no_flags(input)?;
                volume.delete_subvolume(ctx, node, name_at(input, NAME_OFFSET_V2)?)?;
            }
            cmd::SUBVOL_SETFLAGS => {
                let flags = u64::from_le_bytes(*input.first_chunk().ok_or(Error::Invalid)?);
                if flags & !RDONLY != 0 {
                    return Err(Error::NotSupported);
                }
                volume.set_subvolume_read_only(ctx, node, flags & RDONLY != 0)?;
            }
            cmd::INO_LOOKUP => {
                let (mut call, _) = InoLookup::read_from_prefix(input).map_err(|_| Error::Invalid)?;
                // Only the question which subvolume this is.
                if call.tree.get() != 0 || call.ino.get() != ROOT_INO {
                    return Err(Error::NotSupported);
                }
                call.tree = volume.subvolume_of(node)?.id.into();
                call.name = [0; 4080];
                return reply(output, call.as_bytes());
            }
            wire::SNAPSHOT => {
                let (call, _) = Snapshot::ref_from_prefix(input).map_err(|_| Error::Invalid)?;
                let len = usize::try_from(call.name_bytes.get()).map_err(|_| Error::Invalid)?;
                let name = call.name.get(..len).ok_or(Error::NameTooLong)?;
                let source = self.lent(call.token, Access::READ)?;
                volume.snapshot(ctx, source, node, name, call.is_read_only.get() & 1 != 0)?;
            }
            wire::SUBVOLUME => {
                let from = u64::from_le_bytes(*input.first_chunk().ok_or(Error::Invalid)?);
                let mut page = SubvolumePage::new_zeroed();
                match volume.next_subvolume(from)? {
                    Some(info) => page = SubvolumePage::from(&info),
                    None => page.id = U64::ZERO,
                }
                return reply(output, page.as_bytes());
            }
            _ => return Err(Error::NotIoctl),
        }
        Ok(IoctlReply::default())
    }
}

/// The name that begins there, up to the first zero.
fn name_at(input: &[u8], offset: usize) -> Result<&[u8]> {
    let field = input.get(offset..).ok_or(Error::Invalid)?;
    let end = field.iter().position(|&b| b == 0).ok_or(Error::NameTooLong)?;
    Ok(&field[..end])
}

/// Neither quota groups nor numbers instead of names are known here.
fn no_flags(input: &[u8]) -> Result<()> {
    let flags = input.get(FLAGS_OFFSET_V2..).and_then(|rest| rest.first_chunk());
    match flags.map(|bytes| u64::from_le_bytes(*bytes)) {
        Some(0) => Ok(()),
        Some(_) => Err(Error::NotSupported),
        None => Err(Error::Invalid),
    }
}
