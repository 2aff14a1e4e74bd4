//! Ioctls with plain structures: inode flags, facts of the volume, durability.

use cowshed_vfs::{Context, Error, ExtendedFlags, FlagChange, IoctlReply, NodeId, Result, TrimRange, Volume};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::front::Front;
use crate::reply::reply;
use crate::wire;

/// Command numbers of `<linux/fs.h>` and `<linux/btrfs.h>`: direction, size and letter are in them.
mod cmd {
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const GETFLAGS_32: u32 = 0x8004_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    pub const SETFLAGS_32: u32 = 0x4004_6602;
    pub const GETVERSION: u32 = 0x8008_7601;
    pub const GETVERSION_32: u32 = 0x8004_7601;
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
    pub const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
    pub const FS_INFO: u32 = 0x8400_941f;
    pub const GET_FSLABEL: u32 = 0x8100_9431;
    pub const FITRIM: u32 = 0xc018_5879;
}

/// `struct fsxattr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FsXattr {
    xflags: U32,
    extent_size_bytes: U32,
    extents: U32,
    project_id: U32,
    cow_extent_size_bytes: U32,
    pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);

/// `struct fstrim_range`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FsTrimRange {
    start: U64,
    len: U64,
    minlen: U64,
}
const _: () = assert!(size_of::<FsTrimRange>() == 24);

/// The head of `struct btrfs_ioctl_fs_info_args`. The rest is asked for by flags, and none of it is
/// given.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FsInfo {
    max_id: U64,
    num_devices: U64,
    fsid: [u8; 16],
    nodesize: U32,
    sectorsize: U32,
    clone_alignment: U32,
}
const _: () = assert!(size_of::<FsInfo>() == 44);

/// Bytes of `struct btrfs_ioctl_fs_info_args`.
const FS_INFO_BYTES: usize = 1024;
/// `BTRFS_SUBVOL_RDONLY` of `BTRFS_IOC_SUBVOL_GETFLAGS`.
const SUBVOL_RDONLY: u64 = 1 << 1;
/// Bytes that `FS_IOC_GETFSLABEL` fills.
const LABEL_BYTES: usize = 256;

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Answers an ioctl. Errors: `NotIoctl` (unknown), and those of the call that it stands for.
    pub(crate) fn ioctl_plain(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let volume = self.volume();
        match cmd {
            cmd::GETFLAGS | cmd::GETFLAGS_32 => reply(output, &volume.flags(node)?.attributes.to_le_bytes()),
            cmd::SETFLAGS | cmd::SETFLAGS_32 => {
                let wanted = u32::from_le_bytes(*input.first_chunk().ok_or(Error::Invalid)?);
                self.set_flags(ctx, node, &FlagChange::Attributes(wanted))
            }
            cmd::FSGETXATTR => {
                let shown = volume.flags(node)?.extended;
                let raw = FsXattr {
                    xflags: shown.xflags.into(),
                    extent_size_bytes: shown.extent_size_bytes.into(),
                    extents: shown.extents.into(),
                    project_id: shown.project_id.into(),
                    cow_extent_size_bytes: shown.cow_extent_size_bytes.into(),
                    pad: [0; 8],
                };
                reply(output, raw.as_bytes())
            }
            cmd::FSSETXATTR => {
                let (raw, _) = FsXattr::ref_from_prefix(input).map_err(|_| Error::Invalid)?;
                if raw.pad != [0; 8] {
                    return Err(Error::Invalid);
                }
                let wanted = ExtendedFlags {
                    xflags: raw.xflags.get(),
                    extent_size_bytes: raw.extent_size_bytes.get(),
                    extents: raw.extents.get(),
                    project_id: raw.project_id.get(),
                    cow_extent_size_bytes: raw.cow_extent_size_bytes.get(),
                };
                self.set_flags(ctx, node, &FlagChange::Extended(wanted))
            }
            // The format's generation is longer; callers get its low half, as from the kernel.
            cmd::GETVERSION | cmd::GETVERSION_32 => reply(output, &(volume.generation(node)? as u32).to_le_bytes()),
            cmd::SUBVOL_GETFLAGS => {
                let subvolume = volume.subvolume_of(node).map_err(unknown_where_unsupported)?;
                if !subvolume.is_root {
                    return Err(Error::Invalid);
                }
                let bits = if subvolume.is_read_only { SUBVOL_RDONLY } else { 0 };
                reply(output, &bits.to_le_bytes())
            }
            cmd::FS_INFO => reply(output, &self.fs_info()),
            cmd::GET_FSLABEL => {
                let label = volume.info().label;
                let mut bytes = [0; LABEL_BYTES];
                bytes[..label.len()].copy_from_slice(&label);
                reply(output, &bytes)
            }
            cmd::FITRIM => {
                let (raw, _) = FsTrimRange::ref_from_prefix(input).map_err(|_| Error::Invalid)?;
                let trimmed = volume.trim(
                    ctx,
                    TrimRange {
                        start: raw.start.get(),
                        len_bytes: raw.len.get(),
                        bytes_min: raw.minlen.get(),
                    },
                )?;
                let answer = FsTrimRange {
                    len: trimmed.into(),
                    ..*raw
                };
                reply(output, answer.as_bytes())
            }
            wire::SPACE => {
                let account = volume.space_account().map_err(unknown_where_unsupported)?;
                reply(output, wire::SpacePage::from(&account).as_bytes())
            }
            wire::SYNC => volume.syncfs(ctx, node).map(|()| IoctlReply::default()),
            _ => Err(Error::NotIoctl),
        }
    }

    fn set_flags(&self, ctx: &Context, node: NodeId, change: &FlagChange) -> Result<IoctlReply> {
        self.volume().set_flags(ctx, node, change)?;
        Ok(IoctlReply::default())
    }

    fn fs_info(&self) -> [u8; FS_INFO_BYTES] {
        let info = self.volume().info();
        let head = FsInfo {
            max_id: info.devices.into(),
            num_devices: info.devices.into(),
            fsid: info.uuid,
            nodesize: info.metadata_block_bytes.into(),
            sectorsize: info.block_bytes.into(),
            clone_alignment: info.block_bytes.into(),
        };
        let mut bytes = [0; FS_INFO_BYTES];
        bytes[..size_of::<FsInfo>()].copy_from_slice(head.as_bytes());
        bytes
    }
}

/// A call that the format lacks is an ioctl that it does not know.
fn unknown_where_unsupported(error: Error) -> Error {
    if error == Error::NotSupported {
        Error::NotIoctl
    } else {
        error
    }
}
