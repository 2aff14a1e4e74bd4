//! An open volume: superblock, geometry, features, and verified blocks.

mod cache;
mod log;
mod secondary;

use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::{
    Access, AgBlock, AgNumber, Corrupt, Daddr, Expect, Geometry, Ino, Inode, Owner, ReadLimit, Superblock,
};

use crate::error::{Error, Result};
use cache::Cache;
use log::LogPlace;
use secondary::SECTOR_BYTES_MAX;

/// Bound on cached metadata, unless [`OpenOptions`] say otherwise.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// Inodes that are read at once: the 64 of a chunk, where they have the usual 512 bytes.
const INODES_READ_BYTES: u32 = 32 << 10;
/// The owner of clusters of inodes in the cache: no group and no inode has this number.
const CLUSTER_KEY: u64 = u64::MAX;

/// How a volume is opened. It is opened for reading always.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// `rescue=norecovery`: leaves a dirty log alone. What was synced last before a crash does not
    /// show, and what shows may be inconsistent.
    pub no_recovery: bool,
    /// Reads a volume whose repair was interrupted.
    pub rescue: bool,
    /// Where the first superblock is damaged, a copy stands in for it.
    pub use_superblock_copy: bool,
    /// The device of the log, where the volume has an external one.
    pub log_device: Option<Arc<dyn BlockDevice>>,
    /// Bound on cached metadata in bytes; 0: the default.
    pub cache_bytes_max: usize,
}

/// An open volume.
pub struct Volume {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    geometry: Geometry,
    cache: Cache,
    has_dirty_log: bool,
    is_by_copy: bool,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A kind of block that [`Volume::block`] reads.
pub(crate) trait Block: Clone + Send + Sync + Sized + 'static {
    /// Verifies bytes from the device.
    fn verify(bytes: Vec<u8>, expect: &Expect<'_>) -> std::result::Result<Self, Corrupt>;
}

/// The magic of a block of a hash index.
pub(crate) fn da_magic(bytes: &[u8]) -> u16 {
    let magic = bytes.get(8..10).and_then(|magic| magic.try_into().ok());
    magic.map_or(0, u16::from_be_bytes)
}

macro_rules! blocks {
    ($($name:path),+ $(,)?) => {
        $(impl Block for $name {
            fn verify(bytes: Vec<u8>, expect: &Expect<'_>) -> std::result::Result<Self, Corrupt> {
                <$name>::verify(bytes, expect)
            }
        })+
    };
}
blocks!(
    xfs_format::ag::AgfSector,
    xfs_format::ag::AgiSector,
    xfs_format::dir::DirBlock,
    xfs_format::dir::DirDataBlock,
    xfs_format::attr::AttrRemoteBlock,
    xfs_format::symlink::SymlinkBlock,
);

/// Inodes that were read together, not verified yet.
#[derive(Clone)]
struct Cluster(Arc<[u8]>);

impl<K: xfs_format::btree::TreeKind> Block for xfs_format::BtreeBlock<K>
where
    Self: Send + Sync,
{
    fn verify(bytes: Vec<u8>, expect: &Expect<'_>) -> std::result::Result<Self, Corrupt> {
        Self::verify(bytes, expect, None)
    }
}

impl Volume {
    /// Opens the volume on a device. Errors: no superblock or a damaged one, features that are not
    /// supported (by name), a device that is too short, a dirty log.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let size = usize::try_from(device.size_bytes()).unwrap_or(usize::MAX);
        let mut head = vec![0; SECTOR_BYTES_MAX.min(size)];
        device.read_at(0, &mut head)?;
        let (superblock, is_by_copy) = match Superblock::verify(&head) {
            Ok(superblock) => (superblock, false),
            Err(error) => match secondary::find(&*device, &head) {
                Some((group, copy)) if options.use_superblock_copy => {
                    tracing::warn!(%error, group, "a copy stands in for the first superblock");
                    (copy, true)
                }
                Some((group, _)) => return Err(Error::HasCopy { error, group }),
                None => return Err(error.into()),
            },
        };
        let geometry = Geometry::new(&superblock)?;
        let limit = if options.rescue {
            ReadLimit::Rescue
        } else {
            ReadLimit::Kernel
        };
        if let Access::Refused { why } = superblock.access(limit) {
            return Err(Error::Unsupported(why.name));
        }
        let expected = geometry.blocks.saturating_mul(geometry.block_bytes.into());
        if device.size_bytes() < expected {
            return Err(Error::Short {
                found: device.size_bytes(),
                expected,
            });
        }
        let cache_bytes_max = match options.cache_bytes_max {
            0 => CACHE_BYTES_MAX,
            bytes => bytes,
        };
        let mut volume = Self {
            device,
            superblock,
            geometry,
            cache: Cache::new(cache_bytes_max),
            has_dirty_log: false,
            is_by_copy,
        };
        volume.has_dirty_log = !volume.has_clean_log(options)?;
        if volume.has_dirty_log && !options.no_recovery {
            return Err(Error::DirtyLog);
        }
        Ok(volume)
    }

    fn has_clean_log(&self, options: &OpenOptions) -> Result<bool> {
        let (device, start_bytes) = match (self.geometry.log_start, &options.log_device) {
            (Some(start), _) => {
                let start = self.geometry.daddr(start).and_then(Daddr::checked_bytes);
                (&self.device, start.unwrap_or_default())
            }
            (None, Some(device)) => (device, 0),
            (None, None) if options.no_recovery => return Ok(false),
            (None, None) => return Err(Error::Unsupported("an external log without logdev=".to_owned())),
        };
        let bytes = u64::from(self.geometry.log_blocks).saturating_mul(self.geometry.block_bytes.into());
        let found = device.size_bytes().saturating_sub(start_bytes);
        if found < bytes {
            return Err(Error::Short { found, expected: bytes });
        }
        let place = LogPlace {
            device: &**device,
            start_bytes,
            blocks: bytes / u64::from(xfs_format::ids::BASIC_BLOCK_BYTES),
        };
        place.is_clean(&self.superblock)
    }

    /// The superblock as it was read.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The shape of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The log was left alone although it holds changes.
    pub fn has_dirty_log(&self) -> bool {
        self.has_dirty_log
    }

    /// A copy stands in for the first superblock: it has no counters.
    pub(crate) fn is_by_copy(&self) -> bool {
        self.is_by_copy
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    /// A verified block that lies in one piece.
    pub(crate) fn block<B: Block>(&self, daddr: Daddr, len_bytes: u32, owner: Owner) -> Result<B> {
        self.block_of_parts(&[(daddr, len_bytes)], owner)
    }

    /// A verified block in several pieces: that of a directory may be.
    pub(crate) fn block_of_parts<B: Block>(&self, parts: &[(Daddr, u32)], owner: Owner) -> Result<B> {
        let Some((daddr, _)) = parts.first().copied() else {
            return Err(cowshed_vfs::Error::Corrupt.into());
        };
        let key = (bytes_of(daddr), owner_key(owner));
        if let Some(block) = self.cache.get::<B>(key) {
            return Ok(block);
        }
        let bytes = self.read_parts(parts)?;
        let len = bytes.len();
        let block = B::verify(bytes, &self.expect(daddr, owner))?;
        self.cache.put(key, &block, len);
        Ok(block)
    }

    /// A verified inode. The inodes beside it are read with it, and kept until they are asked for.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode> {
        let geometry = &self.geometry;
        let (group, within) = geometry.split_ino(ino).ok_or(cowshed_vfs::Error::Stale)?;
        let block = geometry.ino_block(within);
        let daddr = geometry.ag_daddr(group, block);
        let offset = geometry.ino_offset_bytes(within) as usize;
        let key = (bytes_of(daddr) + offset as u64, owner_key(Owner::Inode(ino)));
        if let Some(inode) = self.cache.get::<Inode>(key) {
            return Ok(inode);
        }
        let at_once = (INODES_READ_BYTES / geometry.block_bytes).max(1);
        let first = block.get() / at_once * at_once;
        let cluster = self.cluster(group, AgBlock(first), at_once)?;
        let at = (block.get() - first) as usize * geometry.block_bytes as usize + offset;
        let bytes = cluster.0.get(at..at + geometry.inode_bytes as usize);
        // Behind the end of the group.
        let bytes = bytes.ok_or(cowshed_vfs::Error::Stale)?;
        let inode = Inode::verify(bytes, &self.expect(daddr, Owner::Inode(ino)))?;
        self.cache.put(key, &inode, bytes.len());
        Ok(inode)
    }

    fn cluster(&self, group: AgNumber, first: AgBlock, blocks: u32) -> Result<Cluster> {
        let daddr = self.geometry.ag_daddr(group, first);
        let key = (bytes_of(daddr), CLUSTER_KEY);
        if let Some(cluster) = self.cache.get::<Cluster>(key) {
            return Ok(cluster);
        }
        let blocks = blocks.min(self.geometry.ag_len(group).saturating_sub(first.get()));
        let mut bytes = vec![0; blocks as usize * self.geometry.block_bytes as usize];
        self.device.read_at(bytes_of(daddr), &mut bytes)?;
        let cluster = Cluster(bytes.into());
        self.cache.put(key, &cluster, cluster.0.len());
        Ok(cluster)
    }

    /// Reads blocks that lie one behind the other at once, if the first is not here yet, and keeps
    /// those that are right: what is wrong with another will be said when it is asked for.
    pub(crate) fn read_ahead<B: Block>(&self, daddr: Daddr, len_bytes: u32, count: u32, owner: Owner) -> Result<()> {
        let start = bytes_of(daddr);
        if count < 2 || self.cache.has((start, owner_key(owner))) {
            return Ok(());
        }
        let mut bytes = vec![0; len_bytes as usize * count as usize];
        self.device.read_at(start, &mut bytes)?;
        for (n, part) in (0_u64..).zip(bytes.chunks_exact(len_bytes as usize)) {
            let offset = n * u64::from(len_bytes);
            let at = Daddr(daddr.get() + offset / u64::from(xfs_format::ids::BASIC_BLOCK_BYTES));
            if let Ok(block) = B::verify(part.to_vec(), &self.expect(at, owner)) {
                self.cache.put((start + offset, owner_key(owner)), &block, part.len());
            }
        }
        Ok(())
    }

    /// The bytes of some pieces, unverified.
    pub(crate) fn read_parts(&self, parts: &[(Daddr, u32)]) -> Result<Vec<u8>> {
        let len: usize = parts.iter().map(|(_, len)| *len as usize).sum();
        let mut bytes = vec![0; len];
        let mut rest = &mut bytes[..];
        for (daddr, len) in parts {
            let (part, behind) = rest.split_at_mut(*len as usize);
            self.device.read_at(bytes_of(*daddr), part)?;
            rest = behind;
        }
        Ok(bytes)
    }

    fn expect(&self, daddr: Daddr, owner: Owner) -> Expect<'_> {
        match owner {
            Owner::Ag(group) => Expect::in_ag(&self.geometry, daddr, group),
            Owner::Inode(ino) => Expect::of_inode(&self.geometry, daddr, ino),
        }
    }
}

/// An address that no volume has fails as one behind the end of the device.
fn bytes_of(daddr: Daddr) -> u64 {
    daddr.checked_bytes().unwrap_or(u64::MAX / 2)
}

/// Groups and inodes in one space of numbers: inodes have 63 bits.
fn owner_key(owner: Owner) -> u64 {
    match owner {
        Owner::Ag(group) => 1 << 63 | u64::from(group.get()),
        Owner::Inode(ino) => ino.get(),
    }
}
