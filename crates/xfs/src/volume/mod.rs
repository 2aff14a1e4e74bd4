//! An open volume: superblock, geometry, features, and verified blocks.

mod cache;
mod secondary;

use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::{Access, Corrupt, Daddr, Expect, Geometry, Lsn, Owner, ReadLimit, Superblock};

use crate::error::{Error, Result};
use crate::log::{self, Ring};
use crate::recovery::{self, Recovery};
use cache::Cache;
use secondary::SECTOR_BYTES_MAX;

/// Bound on cached metadata, unless [`OpenOptions`] say otherwise.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// Bytes that are read around an inode: a power of two, of whole inodes. Linux reads clusters of 8
/// KiB times the size of an inode in units of 256 bytes, and as many more as its readahead says.
const WINDOW_BYTES: u64 = 16 << 10;
/// In the place of an owner: no inode has this number.
const WINDOW_OWNER: u64 = u64::MAX;
/// What the cache needs for an inode beside its bytes.
const INODE_OVERHEAD_BYTES: usize = 160;

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
    /// A copy stands in for the first superblock: it has no counters.
    is_by_copy: bool,
    /// The head of the log: no block is newer. `None` where the log was left alone.
    log_head: Option<Lsn>,
    recovery: Option<Recovery>,
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
    xfs_format::dir::DirLeaf1Block,
    xfs_format::dir::DirLeafNBlock,
    xfs_format::da::DirNodeBlock,
    xfs_format::da::AttrNodeBlock,
    xfs_format::attr::AttrLeafBlock,
    xfs_format::attr::AttrRemoteBlock,
    xfs_format::symlink::SymlinkBlock,
);

/// A block of a directory's hash index. Its magic says which kind it is.
#[derive(Clone)]
pub(crate) enum DirIndexBlock {
    /// The only leaf, with the free index at its end.
    Leaf1(xfs_format::dir::DirLeaf1Block),
    /// A node.
    Node(xfs_format::da::DirNodeBlock),
    /// A leaf below nodes.
    Leaf(xfs_format::dir::DirLeafNBlock),
}

/// A block of an attribute fork, but for remote values.
#[derive(Clone)]
pub(crate) enum AttrIndexBlock {
    /// A node.
    Node(xfs_format::da::AttrNodeBlock),
    /// A leaf.
    Leaf(xfs_format::attr::AttrLeafBlock),
}

const LEAF1_MAGICS: [u16; 2] = [0xd2f1, 0x3df1];
const NODE_MAGICS: [u16; 2] = [0xfebe, 0x3ebe];

fn da_magic(bytes: &[u8]) -> u16 {
    let magic = bytes.get(8..10).and_then(|magic| magic.try_into().ok());
    magic.map_or(0, u16::from_be_bytes)
}

impl Block for DirIndexBlock {
    fn verify(bytes: Vec<u8>, expect: &Expect<'_>) -> std::result::Result<Self, Corrupt> {
        let magic = da_magic(&bytes);
        if LEAF1_MAGICS.contains(&magic) {
            Block::verify(bytes, expect).map(Self::Leaf1)
        } else if NODE_MAGICS.contains(&magic) {
            Block::verify(bytes, expect).map(Self::Node)
        } else {
            Block::verify(bytes, expect).map(Self::Leaf)
        }
    }
}
impl Block for AttrIndexBlock {
    fn verify(bytes: Vec<u8>, expect: &Expect<'_>) -> std::result::Result<Self, Corrupt> {
        if NODE_MAGICS.contains(&da_magic(&bytes)) {
            Block::verify(bytes, expect).map(Self::Node)
        } else {
            Block::verify(bytes, expect).map(Self::Leaf)
        }
    }
}
impl<K: xfs_format::btree::TreeKind> Block for xfs_format::BtreeBlock<K>
where
    Self: Send + Sync,
{
    fn verify(bytes: Vec<u8>, expect: &Expect<'_>) -> std::result::Result<Self, Corrupt> {
        Self::verify(bytes, expect, None)
    }
}

/// Bytes around inodes, not verified.
#[derive(Clone, Default)]
pub(crate) struct Window {
    bytes: Arc<[u8]>,
    start: u64,
}

impl Window {
    /// The bytes at an address, if all are here.
    fn part(&self, at: u64, len: usize) -> Option<&[u8]> {
        let within = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes.get(within..)?.get(..len)
    }
}

impl Volume {
    /// Opens the volume on a device. Errors: no superblock or a damaged one, features that are not
    /// supported (by name), a device that is too short, a log that cannot be recovered.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let size = usize::try_from(device.size_bytes()).unwrap_or(usize::MAX);
        let mut head = vec![0; SECTOR_BYTES_MAX.min(size)];
        device.read_at(0, &mut head)?;
        let (superblock, is_by_copy) = first_or_copy(&*device, &head, options)?;
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
            log_head: None,
            recovery: None,
        };
        volume.open_log(options)?;
        Ok(volume)
    }

    /// Finds the ends of the log, and recovers a dirty one in memory.
    fn open_log(&mut self, options: &OpenOptions) -> Result<()> {
        let (device, start_bytes) = match (self.geometry.log_start, &options.log_device) {
            (Some(start), _) => {
                let start = self.geometry.daddr(start).and_then(Daddr::checked_bytes);
                (Arc::clone(&self.device), start.unwrap_or_default())
            }
            (None, Some(device)) => (Arc::clone(device), 0),
            (None, None) if options.no_recovery => {
                self.has_dirty_log = true;
                return Ok(());
            }
            (None, None) => return Err(Error::Unsupported("an external log without logdev=".to_owned())),
        };
        let bytes = u64::from(self.geometry.log_blocks).saturating_mul(self.geometry.block_bytes.into());
        let found = device.size_bytes().saturating_sub(start_bytes);
        if found < bytes {
            return Err(Error::Short { found, expected: bytes });
        }
        let blocks = u32::try_from(bytes / u64::from(xfs_format::ids::BASIC_BLOCK_BYTES)).unwrap_or(u32::MAX);
        let uuids = [self.superblock.uuid, self.superblock.metadata_uuid()];
        let ring = Ring::new(&*device, start_bytes, blocks, uuids);
        let ends = match log::find(&ring) {
            Ok(ends) => ends,
            Err(error) if options.no_recovery => {
                tracing::warn!(%error, "the log is left alone");
                self.has_dirty_log = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if options.no_recovery {
            self.has_dirty_log = !ends.is_clean();
            return Ok(());
        }
        let newest = self.superblock.lsn();
        if self.superblock.is_v5() && newest != Lsn::NULL && newest > ends.head {
            return Err(ring.mismatch(
                ends.head.block(),
                "the superblock's LSN",
                newest,
                format_args!("at most {}, the head of the log", ends.head),
            ));
        }
        self.log_head = Some(ends.head);
        if !ends.is_clean() {
            let base = Arc::clone(&self.device);
            let start = recovery::Start {
                superblock: &self.superblock,
                geometry: &self.geometry,
                is_by_copy: self.is_by_copy,
            };
            let (recovery, superblock) = recovery::run(base, &ring, &ends, &start)?;
            self.geometry = Geometry::new(&superblock)?;
            self.superblock = superblock;
            self.device = recovery.device();
            self.recovery = Some(recovery);
        }
        Ok(())
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

    /// The counters of the superblock are not to be trusted.
    pub(crate) fn lacks_counters(&self) -> bool {
        self.has_dirty_log || self.is_by_copy
    }

    /// What recovery did. `None` where the log was clean, or left alone.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// The device as the volume is shown: with the changes of recovery in front of it.
    pub fn recovered_device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device)
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

    /// Reads blocks that lie one behind the other at once, unless the first one is cached, and
    /// caches those that are right. Faults of the others, and of the device, show when a block is
    /// read alone.
    pub(crate) fn read_ahead<B: Block>(&self, daddr: Daddr, len_bytes: u32, count: u32, owner: Owner) {
        let start = bytes_of(daddr);
        if count < 2 || self.cache.has((start, owner_key(owner))) {
            return;
        }
        let mut bytes = vec![0; len_bytes as usize * count as usize];
        if self.device.read_at(start, &mut bytes).is_err() {
            return;
        }
        for (n, part) in (0_u64..).zip(bytes.chunks_exact(len_bytes as usize)) {
            let offset = n * u64::from(len_bytes);
            let at = Daddr(daddr.get() + offset / u64::from(xfs_format::ids::BASIC_BLOCK_BYTES));
            if let Ok(block) = B::verify(part.to_vec(), &self.expect(at, owner)) {
                self.cache.put((start + offset, owner_key(owner)), &block, part.len());
            }
        }
    }

    /// A verified inode of a cluster. Its neighbours are read with it, and verified when they are
    /// asked for.
    pub(crate) fn inode(&self, daddr: Daddr, offset: u32, owner: Owner) -> Result<xfs_format::Inode> {
        let at = bytes_of(daddr) + u64::from(offset);
        let key = (at, owner_key(owner));
        if let Some(inode) = self.cache.get(key) {
            return Ok(inode);
        }
        let len = self.geometry.inode_bytes as usize;
        let window = self.window(at, len)?;
        let bytes = window.part(at, len).unwrap_or_default();
        let inode = xfs_format::Inode::verify(bytes, &self.expect(daddr, owner))?;
        self.cache.put(key, &inode, len + INODE_OVERHEAD_BYTES);
        Ok(inode)
    }

    /// As [`Volume::inode`], for one of a listing, which are mostly neighbours and not asked for
    /// again soon: the inode is not cached, and `window` is where the last one was.
    pub(crate) fn inode_near(
        &self,
        window: &mut Window,
        daddr: Daddr,
        offset: u32,
        owner: Owner,
    ) -> Result<xfs_format::Inode> {
        let at = bytes_of(daddr) + u64::from(offset);
        let len = self.geometry.inode_bytes as usize;
        if window.part(at, len).is_none() {
            *window = self.window(at, len)?;
        }
        let bytes = window.part(at, len).unwrap_or_default();
        Ok(xfs_format::Inode::verify(bytes, &self.expect(daddr, owner))?)
    }

    /// Bytes around an inode. Errors: those of the device, for the inode alone where its neighbours
    /// cannot be read.
    fn window(&self, at: u64, len: usize) -> Result<Window> {
        let start = at & !(WINDOW_BYTES - 1);
        let end = (start + WINDOW_BYTES).min(self.device.size_bytes());
        let key = (start, WINDOW_OWNER);
        if let Some(bytes) = self.cache.get(key) {
            return Ok(Window { bytes, start });
        }
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        if bytes.is_empty() || self.device.read_at(start, &mut bytes).is_err() {
            let mut alone = vec![0; len];
            self.device.read_at(at, &mut alone)?;
            return Ok(Window {
                bytes: alone.into(),
                start: at,
            });
        }
        let bytes: Arc<[u8]> = bytes.into();
        self.cache.put(key, &bytes, bytes.len());
        Ok(Window { bytes, start })
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
        let expect = match owner {
            Owner::Ag(group) => Expect::in_ag(&self.geometry, daddr, group),
            Owner::Inode(ino) => Expect::of_inode(&self.geometry, daddr, ino),
        };
        Expect {
            head: self.log_head,
            ..expect
        }
    }
}

/// The first superblock, or a copy of it where it is damaged and the options ask for that. True: it
/// is a copy.
fn first_or_copy(device: &dyn BlockDevice, head: &[u8], options: &OpenOptions) -> Result<(Superblock, bool)> {
    let error = match Superblock::verify(head) {
        Ok(superblock) => return Ok((superblock, false)),
        Err(error) => error,
    };
    match secondary::find(device, head, options.use_superblock_copy) {
        Some((group, copy)) if options.use_superblock_copy => {
            tracing::warn!(%error, group, "a copy stands in for the first superblock");
            Ok((copy, true))
        }
        Some((group, _)) => Err(Error::HasCopy { error, group }),
        None => Err(error.into()),
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
