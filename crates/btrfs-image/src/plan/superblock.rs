//! The superblock of a planned volume.

use btrfs_format::features::{header_flags, incompat};
use btrfs_format::items::ChunkHead;
use btrfs_format::superblock::{MAGIC, RootBackup, SYSTEM_CHUNK_ARRAY_BYTES};
use btrfs_format::{DiskKey, Key, KeyType, ObjectId, Superblock, TreeId, U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::{ChunkKind, ChunkPlanner, GENERATION, PlacedTree, TreeRoot, VolumePlan, items};
use crate::{Profile, Settings};

impl VolumePlan {
    /// What the superblocks are made of.
    pub(crate) fn superblocks(&self) -> Superblocks<'_> {
        Superblocks {
            settings: &self.settings,
            chunks: &self.chunks,
            roots: self.trees.iter().map(PlacedTree::summary).collect(),
            used_bytes: self.used_bytes(),
            incompat_bits: 0,
        }
    }

    /// The superblock of a device, by its index, for the copy at `offset_bytes`.
    pub fn superblock(&self, device: usize, offset_bytes: u64) -> Superblock {
        self.superblocks().superblock(device, offset_bytes)
    }
    /// `incompat_flags`, with what the profiles need.
    pub fn incompat_bits(&self) -> u64 {
        self.superblocks().incompat_bits()
    }
}

/// What superblocks are made of.
#[derive(Debug)]
pub(crate) struct Superblocks<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) chunks: &'a ChunkPlanner,
    pub(crate) roots: Vec<TreeRoot>,
    /// Bytes that blocks and data take.
    pub(crate) used_bytes: u64,
    /// Besides those that follow from settings and chunks.
    pub(crate) incompat_bits: u64,
}

impl Superblocks<'_> {
    /// The superblock of a device, by its index, for the copy at `offset_bytes`: complete, with its
    /// checksum.
    pub(crate) fn superblock(&self, device: usize, offset_bytes: u64) -> Superblock {
        let settings = self.settings;
        let mut sb = Superblock::new_zeroed();
        sb.fsid = settings.uuid;
        sb.bytenr = U64::new(offset_bytes);
        sb.flags = U64::new(header_flags::WRITTEN);
        sb.magic = MAGIC;
        sb.generation = GENERATION.into();
        let root = self.root(TreeId::ROOT);
        sb.root = root.addr.into();
        sb.root_level = root.level;
        let chunk_root = self.root(TreeId::CHUNK);
        sb.chunk_root = chunk_root.addr.into();
        sb.chunk_root_level = chunk_root.level;
        sb.chunk_root_generation = GENERATION.into();
        sb.total_bytes = U64::new(settings.total_bytes());
        sb.bytes_used = U64::new(self.used_bytes);
        sb.root_dir_objectid = ObjectId::ROOT_TREE_DIR.into();
        sb.num_devices = U64::new(self.chunks.devices.len() as u64);
        sb.sectorsize = U32::new(settings.sectorsize_bytes);
        sb.stripesize = U32::new(settings.sectorsize_bytes);
        sb.nodesize = U32::new(settings.nodesize_bytes);
        sb.leafsize_unused = U32::new(settings.nodesize_bytes);
        sb.incompat_flags = U64::new(self.incompat_bits());
        sb.compat_ro_flags = U64::new(settings.features.compat_ro_bits());
        sb.csum_type = U16::new(settings.csum_type.to_raw());
        let used = self.chunks.device_used_bytes(device);
        sb.dev_item = items::dev_item(settings, &self.chunks.devices[device], used);
        sb.label[..settings.label.len()].copy_from_slice(settings.label.as_bytes());
        // The version 1 space cache is absent: all ones says that there is none to trust.
        sb.cache_generation = U64::new(if settings.features.free_space_tree { 0 } else { u64::MAX });
        // The uuid tree is complete as of this generation.
        sb.uuid_tree_generation = GENERATION.into();
        let (array, len) = self.system_chunk_array();
        sb.sys_chunk_array = array;
        sb.sys_chunk_array_size = U32::new(len);
        sb.super_roots[0] = self.root_backup();
        sb.seal(settings.csum_type);
        sb
    }

    /// `incompat_flags`, with what the profiles need.
    pub(crate) fn incompat_bits(&self) -> u64 {
        let mut bits = self.settings.features.incompat_bits() | self.incompat_bits;
        if self.settings.default_subvolume != TreeId::FS {
            bits |= incompat::DEFAULT_SUBVOL;
        }
        let many_copies = [Profile::Raid1c3, Profile::Raid1c4];
        if self
            .chunks
            .chunks
            .iter()
            .any(|chunk| many_copies.contains(&chunk.profile))
        {
            bits |= incompat::RAID1C34;
        }
        bits
    }

    fn root(&self, id: TreeId) -> &TreeRoot {
        let found = self.roots.iter().find(|root| root.id == id);
        found.expect("every volume has this tree")
    }

    /// The system chunks, so that the chunk tree can be read; and the bytes that they take.
    fn system_chunk_array(&self) -> ([u8; SYSTEM_CHUNK_ARRAY_BYTES], u32) {
        let mut bytes = Vec::new();
        for chunk in self
            .chunks
            .chunks
            .iter()
            .filter(|chunk| chunk.kind == ChunkKind::System)
        {
            let key = Key::new(ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, chunk.logical.0);
            let head: ChunkHead = chunk.head(self.settings.sectorsize_bytes);
            bytes.extend(DiskKey::from(key).as_bytes());
            bytes.extend(head.as_bytes());
            bytes.extend(chunk.disk_stripes(&self.chunks.devices).as_bytes());
        }
        let mut array = [0; SYSTEM_CHUNK_ARRAY_BYTES];
        array[..bytes.len()].copy_from_slice(&bytes);
        let len = u32::try_from(bytes.len()).expect("the array is 2048 bytes long");
        (array, len)
    }

    fn root_backup(&self) -> RootBackup {
        let generation = GENERATION.into();
        let [root, chunk, extent, fs, dev, csum] = [
            TreeId::ROOT,
            TreeId::CHUNK,
            TreeId::EXTENT,
            TreeId::FS,
            TreeId::DEV,
            TreeId::CSUM,
        ]
        .map(|id| self.root(id));
        RootBackup {
            tree_root: root.addr.into(),
            tree_root_gen: generation,
            tree_root_level: root.level,
            chunk_root: chunk.addr.into(),
            chunk_root_gen: generation,
            chunk_root_level: chunk.level,
            extent_root: extent.addr.into(),
            extent_root_gen: generation,
            extent_root_level: extent.level,
            fs_root: fs.addr.into(),
            fs_root_gen: generation,
            fs_root_level: fs.level,
            dev_root: dev.addr.into(),
            dev_root_gen: generation,
            dev_root_level: dev.level,
            csum_root: csum.addr.into(),
            csum_root_gen: generation,
            csum_root_level: csum.level,
            total_bytes: U64::new(self.settings.total_bytes()),
            bytes_used: U64::new(self.used_bytes),
            num_devices: U64::new(self.chunks.devices.len() as u64),
            ..RootBackup::new_zeroed()
        }
    }
}
