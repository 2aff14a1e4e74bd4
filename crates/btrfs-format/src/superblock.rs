//! The superblock and its mirrors.

mod access;
#[cfg(test)]
mod tests;
mod verify;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::csum::CSUM_FIELD_BYTES;
use crate::csum::ChecksumType;
use crate::ids::Uuid;
use crate::items::DevItem;
use cowshed_layout::on_disk;

pub use access::{Access, SUPPORTED_COMPAT_RO, SUPPORTED_INCOMPAT, UnsupportedFeature};
pub use verify::SuperblockError;

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Where the copies lie on each device, as far as the device reaches.
pub const SUPERBLOCK_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// No chunk may use a device's first MiB.
pub const DEVICE_RESERVED_BYTES: u64 = 1 << 20;
/// `magic`: what makes the block a btrfs superblock.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Room for system chunks in the superblock.
pub const SYSTEM_CHUNK_ARRAY_BYTES: usize = 2048;
/// Room for the label, its terminating zero included.
pub const LABEL_BYTES: usize = 256;

on_disk!(
    /// `btrfs_root_backup`.
    /// docs/format/superblock.md
    RootBackup(168) {
        tree_root: U64,
        tree_root_gen: U64,
        chunk_root: U64,
        chunk_root_gen: U64,
        extent_root: U64,
        extent_root_gen: U64,
        fs_root: U64,
        fs_root_gen: U64,
        dev_root: U64,
        dev_root_gen: U64,
        csum_root: U64,
        csum_root_gen: U64,
        total_bytes: U64,
        bytes_used: U64,
        num_devices: U64,
        unused_64: [U64; 4],
        tree_root_level: u8,
        chunk_root_level: u8,
        extent_root_level: u8,
        fs_root_level: u8,
        dev_root_level: u8,
        csum_root_level: u8,
        unused_8: [u8; 10],
    }
);

on_disk!(
    /// `btrfs_super_block`.
    /// docs/format/superblock.md
    Superblock(4096) {
        csum: [u8; CSUM_FIELD_BYTES],
        fsid: Uuid,
        bytenr: U64,
        flags: U64,
        magic: [u8; 8],
        generation: U64,
        root: U64,
        chunk_root: U64,
        log_root: U64,
        log_root_transid_unused: U64,
        total_bytes: U64,
        bytes_used: U64,
        root_dir_objectid: U64,
        num_devices: U64,
        sectorsize: U32,
        nodesize: U32,
        leafsize_unused: U32,
        stripesize: U32,
        sys_chunk_array_size: U32,
        chunk_root_generation: U64,
        compat_flags: U64,
        compat_ro_flags: U64,
        incompat_flags: U64,
        csum_type: U16,
        root_level: u8,
        chunk_root_level: u8,
        log_root_level: u8,
        dev_item: DevItem,
        label: [u8; LABEL_BYTES],
        cache_generation: U64,
        uuid_tree_generation: U64,
        metadata_uuid: Uuid,
        nr_global_roots: U64,
        remap_root: U64,
        remap_root_generation: U64,
        remap_root_level: u8,
        reserved: [u8; 199],
        sys_chunk_array: [u8; SYSTEM_CHUNK_ARRAY_BYTES],
        super_roots: [RootBackup; 4],
        padding: [u8; 565],
    }
);
const _: () = assert!(core::mem::offset_of!(Superblock, dev_item) == 0xc9);
const _: () = assert!(core::mem::offset_of!(Superblock, label) == 0x12b);
const _: () = assert!(core::mem::offset_of!(Superblock, metadata_uuid) == 0x23b);
const _: () = assert!(core::mem::offset_of!(Superblock, sys_chunk_array) == 0x32b);
const _: () = assert!(core::mem::offset_of!(Superblock, super_roots) == 0xb2b);

impl Superblock {
    /// Computes the checksum of everything after the checksum field.
    pub fn compute_csum(&self, ty: ChecksumType) -> crate::csum::Checksum {
        ty.compute(self.as_bytes().get(CSUM_FIELD_BYTES..).unwrap_or_default())
    }

    /// Stores the right checksum; `ty` must be what `csum_type` says.
    pub fn seal(&mut self, ty: ChecksumType) {
        self.csum = self.compute_csum(ty);
    }

    /// The uuid that tree blocks carry: `metadata_uuid` where that feature is on, else `fsid`.
    pub fn metadata_fsid(&self) -> Uuid {
        if self.incompat_flags.get() & crate::features::incompat::METADATA_UUID != 0 {
            self.metadata_uuid
        } else {
            self.fsid
        }
    }

    /// The label, without the zeros that fill it up.
    pub fn label(&self) -> &[u8] {
        self.label.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// The system chunk array, as far as it is used.
    pub fn system_chunk_bytes(&self) -> &[u8] {
        usize::try_from(self.sys_chunk_array_size.get())
            .ok()
            .and_then(|len| self.sys_chunk_array.get(..len))
            .unwrap_or_default()
    }
}
