//! Ioctls with plain structures: inode flags, facts of the volume, durability.

use cowshed_vfs::{
    Context, DeviceInfo, Error, ExtendedFlags, Features, FlagChange, IoctlReply, NodeId, Result, TrimRange, Volume,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::front::Front;
use crate::reply::{argument, reply};
use crate::wire;
use crate::wire::btrfs::{self, DevInfo, DevStats, FeatureFlags, FsInfo, put_text, text};

/// Command numbers of `<linux/fs.h>`: direction, size and letter are in them.
mod cmd {
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const GETFLAGS_32: u32 = 0x8004_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    pub const SETFLAGS_32: u32 = 0x4004_6602;
    pub const GETVERSION: u32 = 0x8008_7601;
    pub const GETVERSION_32: u32 = 0x8004_7601;
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
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

/// `BTRFS_FS_INFO_FLAG_GENERATION`.
const FS_INFO_GENERATION: u64 = 1 << 1;

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
            btrfs::SUBVOL_GETFLAGS => {
                let subvolume = volume.subvolume_of(node).map_err(unknown_where_unsupported)?;
                if !subvolume.is_root {
                    return Err(Error::Invalid);
                }
                let bits = if subvolume.is_read_only { btrfs::RDONLY } else { 0 };
                reply(output, &bits.to_le_bytes())
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
            wire::SYNC => self.commit(ctx, node).map(|()| IoctlReply::default()),
            _ => self.ioctl_volume(ctx, node, cmd, input, output),
        }
    }

    /// Facts of the volume and its devices.
    fn ioctl_volume(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let volume = self.volume();
        match cmd {
            btrfs::FS_INFO => reply(output, self.fs_info().as_bytes()),
            btrfs::DEV_INFO => {
                let call: &DevInfo = argument(input)?;
                let device = self.device_of(call.devid.get(), &call.uuid)?;
                let mut page = DevInfo {
                    devid: device.id.into(),
                    uuid: device.uuid,
                    bytes_used: device.used_bytes.into(),
                    total_bytes: device.total_bytes.into(),
                    fsid: volume.info().uuid,
                    ..DevInfo::new_zeroed()
                };
                let name = device.name.unwrap_or_default();
                let end = name.len().min(page.path.len() - 1);
                put_text(&mut page.path, &name.as_bytes()[..end]);
                reply(output, page.as_bytes())
            }
            btrfs::GET_DEV_STATS => {
                let mut call: DevStats = *argument(input)?;
                // Setting them to zero is a flag.
                if call.flags.get() != 0 {
                    return Err(Error::NotSupported);
                }
                let device = self.device_of(call.devid.get(), &[0; 16])?;
                call.values = device.faults.map(U64::new);
                call.nr_items = U64::new(call.nr_items.get().min(call.values.len() as u64));
                reply(output, call.as_bytes())
            }
            btrfs::GET_FEATURES => reply(output, features(volume.info().features).as_bytes()),
            btrfs::GET_SUPPORTED_FEATURES => {
                let none = FeatureFlags::new_zeroed();
                reply(output, [features(volume.info().known_features), none, none].as_bytes())
            }
            btrfs::GET_FSLABEL => {
                let mut bytes = [0; btrfs::LABEL_BYTES];
                put_text(&mut bytes, &volume.info().label);
                reply(output, &bytes)
            }
            btrfs::SET_FSLABEL => {
                let label = text(input.get(..btrfs::LABEL_BYTES).ok_or(Error::Invalid)?).ok_or(Error::Invalid)?;
                volume.set_label(ctx, label)?;
                Ok(IoctlReply::default())
            }
            // A commit that is started is one that is done.
            btrfs::START_SYNC => {
                self.commit(ctx, node)?;
                reply(output, &volume.info().generation.to_le_bytes())
            }
            btrfs::WAIT_SYNC => match argument::<U64>(input)?.get() > volume.info().generation {
                true => Err(Error::Invalid),
                false => self.commit(ctx, node).map(|()| IoctlReply::default()),
            },
            _ => Err(Error::NotIoctl),
        }
    }

    /// What comes after it is a wait for deleted subvolumes, often.
    fn commit(&self, ctx: &Context, node: NodeId) -> Result<()> {
        self.volume().syncfs(ctx, node)?;
        if let Ok(subvolumes) = self.volume().subvolumes() {
            subvolumes.drop_at_once();
        }
        Ok(())
    }

    /// By number, or by id where the number is 0. Errors: `NoDevice`.
    fn device_of(&self, id: u64, uuid: &[u8; 16]) -> Result<DeviceInfo> {
        if id != 0 {
            return self.volume().device(id)?.ok_or(Error::NoDevice);
        }
        for id in 1..=self.volume().info().device_id_max {
            if let Some(device) = self.volume().device(id)?.filter(|device| device.uuid == *uuid) {
                return Ok(device);
            }
        }
        Err(Error::NoDevice)
    }

    fn set_flags(&self, ctx: &Context, node: NodeId, change: &FlagChange) -> Result<IoctlReply> {
        self.volume().set_flags(ctx, node, change)?;
        Ok(IoctlReply::default())
    }

    /// Callers set flags for what they want beside the head, which Linux does not pass on.
    fn fs_info(&self) -> FsInfo {
        let info = self.volume().info();
        FsInfo {
            max_id: info.device_id_max.into(),
            num_devices: info.devices.into(),
            fsid: info.uuid,
            nodesize: info.metadata_block_bytes.into(),
            sectorsize: info.block_bytes.into(),
            clone_alignment: info.block_bytes.into(),
            flags: FS_INFO_GENERATION.into(),
            generation: info.generation.into(),
            ..FsInfo::new_zeroed()
        }
    }
}

fn features(features: Features) -> FeatureFlags {
    FeatureFlags {
        compat_flags: features.compat.into(),
        compat_ro_flags: features.compat_ro.into(),
        incompat_flags: features.incompat.into(),
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
