//! What the checker says: findings under stable ids, counted without bound and kept up to a bound.

use std::collections::BTreeMap;
use std::fmt;

use btrfs_format::{Key, LogicalAddr, TreeId};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing, legal.
    Note,
    /// Wrong, but nothing is lost by it: the kernel mends or ignores it.
    Warning,
    /// The volume is damaged.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

macro_rules! finding_ids {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $severity:ident;)+) => {
        /// The kinds of findings. The text form is stable: scripts may rely on it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingId { $($(#[doc = $doc])+ $name),+ }

        impl FindingId {
            /// Every id there is.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
            /// How bad it is.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),+ }
            }
            /// What it means, in a sentence or two.
            pub fn describe(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_start()),+ }
            }
        }
    };
}

finding_ids! {
    // Devices and superblocks.
    /// No copy of a device's superblock can be used.
    SuperUnreadable = "super-unreadable", Error;
    /// A copy of the superblock is damaged, or differs from the best one.
    SuperMirror = "super-mirror", Error;
    /// No superblock where a copy belongs: the next commit writes it.
    SuperMirrorMissing = "super-mirror-missing", Warning;
    /// A copy of the superblock is of the commit before or after, or of another one of the same
    /// generation: legal after a crash.
    SuperMirrorStale = "super-mirror-stale", Note;
    /// A field of the superblock has a value that is not allowed.
    SuperField = "super-field", Error;
    /// The volume is a dump of metadata, as `btrfs-image` makes it: data is not compared with its
    /// checksums.
    MetadataDump = "metadata-dump", Note;
    /// A feature bit that this checker does not support, or the lack of one that it requires.
    UnsupportedFeature = "unsupported-feature", Error;
    /// `bytes_used` is not the sum of the extents.
    SuperBytesUsed = "super-bytes-used", Error;
    /// `total_bytes` is not the sum of the devices.
    SuperTotalBytes = "super-total-bytes", Error;
    /// `num_devices` is not the number of device items.
    SuperNumDevices = "super-num-devices", Error;
    /// The device item in a superblock differs from the one in the chunk tree.
    SuperDevItem = "super-dev-item", Error;
    /// A superblock's device item has another number of bytes used than the chunk tree, as old
    /// kernels and ntfs2btrfs leave it; Linux does not read it.
    SuperDevItemStale = "super-dev-item-stale", Note;
    /// A device of the volume was not given.
    DeviceMissing = "device-missing", Error;
    /// A device was given that belongs to another volume, or twice.
    DeviceForeign = "device-foreign", Error;
    /// A device is smaller than its item says.
    DeviceSize = "device-size", Error;
    /// `bytes_used` of a device item is not the sum of its device extents.
    DevItemBytesUsed = "dev-item-bytes-used", Error;
    /// A fsync log waits to be replayed.
    LogPresent = "log-present", Note;
    /// The log tree cannot be read whole, or has items that are not allowed.
    LogInvalid = "log-invalid", Error;

    // Chunks.
    /// The superblock's array of system chunks is malformed.
    SysChunkArray = "sys-chunk-array", Error;
    /// The superblock's system chunks differ from the chunk tree's.
    SysChunkMismatch = "sys-chunk-mismatch", Error;
    /// A chunk item has values that are not allowed.
    ChunkInvalid = "chunk-invalid", Error;
    /// A stripe names a device that does not exist, or that has another uuid.
    ChunkDevice = "chunk-device", Error;
    /// Two chunks share addresses.
    ChunkOverlap = "chunk-overlap", Error;
    /// A chunk's stripe has no device extent.
    DevExtentMissing = "dev-extent-missing", Error;
    /// A device extent belongs to no device, or does not match a stripe of a chunk.
    DevExtentOrphan = "dev-extent-orphan", Error;
    /// Two device extents overlap.
    DevExtentOverlap = "dev-extent-overlap", Error;
    /// A device extent reaches beyond its device.
    DevExtentBeyondDevice = "dev-extent-beyond-device", Error;
    /// A chunk has no block group.
    BlockGroupMissing = "block-group-missing", Error;
    /// A block group has no chunk.
    BlockGroupOrphan = "block-group-orphan", Error;
    /// A block group's length or type is not its chunk's.
    BlockGroupMismatch = "block-group-mismatch", Error;
    /// `used` of a block group is not the sum of its extents.
    BlockGroupUsed = "block-group-used", Error;

    // Tree blocks.
    /// A block's address lies in no chunk, or is unaligned.
    BlockUnmapped = "block-unmapped", Error;
    /// A device failed to read a copy of a block.
    BlockUnreadable = "block-unreadable", Error;
    /// A tree block does not match its checksum.
    BlockCsum = "block-csum", Error;
    /// The block has the id of another volume.
    BlockFsid = "block-fsid", Error;
    /// The address in the block's header is not its address.
    BlockBytenr = "block-bytenr", Error;
    /// A block's level is not the one in its parent.
    BlockLevel = "block-level", Error;
    /// The block's generation is not the one in its parent.
    BlockGeneration = "block-generation", Error;
    /// A block is newer than its parent.
    BlockNewerThanParent = "block-newer-than-parent", Error;
    /// The block is newer than the superblock.
    BlockFuture = "block-future", Error;
    /// The block belongs to a tree that cannot own it here.
    BlockOwner = "block-owner", Error;
    /// Too many items, or no item where at least one is required.
    BlockItemCount = "block-item-count", Error;
    /// The keys of a block do not rise.
    BlockKeyOrder = "block-key-order", Error;
    /// The first key is not the one in the parent.
    BlockFirstKey = "block-first-key", Error;
    /// A key reaches into the range of the next block.
    BlockKeyRange = "block-key-range", Error;
    /// An item's data lies outside of the leaf, or overlaps another item's.
    BlockItemBounds = "block-item-bounds", Error;
    /// Two intact copies of a block differ.
    BlockCopiesDiffer = "block-copies-differ", Error;
    /// The verifier of the format rejects an item.
    ItemInvalid = "item-invalid", Error;
    /// A tree has an item of a type that does not belong in it.
    ItemForeign = "item-foreign", Error;
    /// Parts of a tree could not be read, and were not checked.
    TreeIncomplete = "tree-incomplete", Error;

    // Roots and subvolumes.
    /// A tree that every volume needs has no root.
    RootMissing = "root-missing", Error;
    /// A root item has values that are not allowed.
    RootItemInvalid = "root-item-invalid", Error;
    /// `bytes_used` of a root item is not the size of its tree.
    RootBytesUsed = "root-bytes-used", Note;
    /// Two roots name the same block.
    RootShared = "root-shared", Error;
    /// A shared block is newer than the last snapshot in its tree's root item: the next write would
    /// treat it as not shared.
    RootLastSnapshot = "root-last-snapshot", Error;
    /// A root reference has no back reference.
    RootBackrefMissing = "root-backref-missing", Error;
    /// A root back reference has no reference.
    RootRefMissing = "root-ref-missing", Error;
    /// Reference and back reference of a subvolume differ.
    RootRefMismatch = "root-ref-mismatch", Error;
    /// A subvolume has no place in any directory.
    RootUnreferenced = "root-unreferenced", Error;
    /// A reference names a subvolume that does not exist.
    RootRefDangling = "root-ref-dangling", Error;
    /// The subvolume that is mounted by default does not exist.
    RootDefaultMissing = "root-default-missing", Error;
    /// The directory entry that a root reference names does not exist.
    RootDirEntryMissing = "root-dir-entry-missing", Error;
    /// A directory entry names a subvolume without a root reference.
    RootDirEntryStale = "root-dir-entry-stale", Warning;
    /// A deleted subvolume without an orphan item: its space is never freed.
    RootOrphanMissing = "root-orphan-missing", Warning;
    /// More of a deleted subvolume is gone than its root item says: Linux forgets how far a
    /// deletion is that it continues, if it is interrupted soon. It finds no references then, and
    /// becomes read-only; a mount of Cowshed finishes the deletion.
    RootDropBehind = "root-drop-behind", Warning;
    /// The uuid tree lacks a subvolume.
    UuidMissing = "uuid-missing", Warning;
    /// The uuid tree names a subvolume that has another uuid or is gone.
    UuidStale = "uuid-stale", Warning;

    // Extents.
    /// An extent item has values that are not allowed.
    ExtentItemInvalid = "extent-item-invalid", Error;
    /// Two extents share bytes.
    ExtentOverlap = "extent-overlap", Error;
    /// Something in use has no extent item.
    ExtentMissing = "extent-missing", Error;
    /// An extent item that nothing uses.
    ExtentUnreferenced = "extent-unreferenced", Error;
    /// The count of references is not the sum of the back references.
    ExtentRefCount = "extent-ref-count", Error;
    /// A use has no back reference.
    BackrefMissing = "backref-missing", Error;
    /// A back reference names a use that does not exist.
    BackrefStale = "backref-stale", Error;
    /// A back reference counts more or fewer uses than there are.
    BackrefCount = "backref-count", Error;
    /// References differ in a way that could not be narrowed down.
    BackrefMismatch = "backref-mismatch", Error;
    /// The length in an extent item is not that of its tree block, or not the one in a file extent.
    ExtentSize = "extent-size", Error;
    /// A tree block is used as data, or the reverse; or a full back reference where none may be.
    ExtentFlags = "extent-flags", Error;
    /// The level in an extent item is not its block's.
    ExtentLevel = "extent-level", Error;
    /// A shared block that its owner's tree does not use any more, without the full back references
    /// that this requires.
    ExtentOwnerLost = "extent-owner-lost", Error;
    /// An extent is newer than the superblock.
    ExtentGeneration = "extent-generation", Error;
    /// The extent is not within one block group.
    ExtentOutsideBlockGroup = "extent-outside-block-group", Error;
    /// The extent is of another kind than its block group.
    ExtentWrongBlockGroup = "extent-wrong-block-group", Error;
    /// A tree block straddles a stripe.
    ExtentCrossesStripe = "extent-crosses-stripe", Warning;

    // Free space.
    /// A block group has no info item in the free-space tree.
    FreeSpaceInfoMissing = "free-space-info-missing", Error;
    /// The count of runs in the free-space tree is not the number of runs.
    FreeSpaceInfoCount = "free-space-info-count", Error;
    /// A malformed item of the free-space tree.
    FreeSpaceInvalid = "free-space-invalid", Error;
    /// Space in use is free in the free-space tree: a write may destroy it.
    FreeSpaceInUse = "free-space-in-use", Error;
    /// Free space is missing in the free-space tree.
    FreeSpaceLost = "free-space-lost", Error;
    /// Free-space items in no chunk, and before one: mkfs.btrfs leaves those of its first block
    /// groups behind.
    FreeSpaceStale = "free-space-stale", Note;
    /// Free-space items that do not match the block groups.
    FreeSpaceOrphan = "free-space-orphan", Error;
    /// The version 1 cache of a block group contradicts its inode.
    SpaceCacheInvalid = "space-cache-invalid", Warning;

    /// Space in use is free in a version 1 cache that the kernel would use: a write may destroy it.
    SpaceCacheInUse = "space-cache-in-use", Error;

    // Quotas.
    /// The bytes counted by a quota group are not those that its subvolume uses.
    QuotaCount = "quota-count", Error;
    /// A subvolume has no quota group.
    QuotaMissing = "quota-missing", Warning;

    // Checksums of data.
    /// A checksum item is malformed or overlaps another.
    CsumItemInvalid = "csum-item-invalid", Error;
    /// Checksums of a range without a data extent.
    CsumOrphan = "csum-orphan", Error;
    /// Data has no checksums.
    CsumMissing = "csum-missing", Error;
    /// Checksums where none are allowed: nodatasum, or preallocated and written by no other file
    /// that shares the extent.
    CsumUnexpected = "csum-unexpected", Error;
    /// Compressed data of an inode without checksums, which old kernels could make: where it is
    /// damaged, it cannot be decompressed, or gives something else.
    CompressedUnsummed = "compressed-unsummed", Warning;
    /// Data does not match its checksum.
    DataCsum = "data-csum", Error;
    /// A device failed to read data.
    DataUnreadable = "data-unreadable", Error;
    /// Compressed data cannot be decompressed, though its checksums may match.
    DataUndecodable = "data-undecodable", Error;

    // Files.
    /// Items of an inode that has no inode item.
    InodeMissing = "inode-missing", Error;
    /// An inode item is malformed, or its mode has no file type.
    InodeMode = "inode-mode", Error;
    /// Inode flags are unknown or do not match the inode.
    InodeFlags = "inode-flags", Error;
    /// An inode is newer than the superblock.
    InodeGeneration = "inode-generation", Error;
    /// The link count of an inode is not the number of its names.
    InodeNlink = "inode-nlink", Error;
    /// A file without a name and without an orphan item: its space is never freed.
    InodeOrphanMissing = "inode-orphan-missing", Error;
    /// An inode reference names a directory entry that does not exist.
    InodeRefStale = "inode-ref-stale", Error;
    /// A directory entry whose inode does not refer back to it.
    InodeRefMissing = "inode-ref-missing", Error;
    /// A malformed inode reference.
    InodeRefInvalid = "inode-ref-invalid", Error;
    /// An extended inode reference has a key that is not the hash of its name.
    InodeExtrefHash = "inode-extref-hash", Error;
    /// A name without a directory item: it cannot be looked up.
    DirItemMissing = "dir-item-missing", Error;
    /// A name without a directory index: it is not listed.
    DirIndexMissing = "dir-index-missing", Error;
    /// A directory entry has an invalid name, type or location.
    DirEntryInvalid = "dir-entry-invalid", Error;
    /// A directory item has a key that is not the hash of its name.
    DirEntryHash = "dir-entry-hash", Error;
    /// A directory entry's type is not its inode's.
    DirEntryType = "dir-entry-type", Error;
    /// A directory entry of an inode that does not exist.
    DirEntryDangling = "dir-entry-dangling", Error;
    /// Directory items, indices and references of a directory differ in a way that could not be
    /// narrowed down.
    DirNames = "dir-names", Error;
    /// The size of a directory is not twice the sum of its names.
    DirSize = "dir-size", Error;
    /// A subvolume without a root directory.
    RootDirMissing = "root-dir-missing", Error;
    /// The root of a subvolume is no directory.
    RootDirInvalid = "root-dir-invalid", Error;
    /// Items that do not match the inode's type: directory items on a file, extents on a directory.
    InodeItemForeign = "inode-item-foreign", Error;
    /// A file extent has an invalid alignment, length or encoding.
    FileExtentInvalid = "file-extent-invalid", Error;
    /// Two extents of a file share bytes of it.
    FileExtentOverlap = "file-extent-overlap", Error;
    /// A gap between file extents on a volume that requires explicit holes.
    FileExtentHole = "file-extent-hole", Error;
    /// The byte count of an inode is not the sum of its extents.
    FileNbytes = "file-nbytes", Error;
    /// The target of a symbolic link does not have the size in the inode.
    SymlinkInvalid = "symlink-invalid", Error;
    /// A malformed extended attribute.
    XattrInvalid = "xattr-invalid", Error;
    /// An extended attribute has a key that is not the hash of its name.
    XattrHash = "xattr-hash", Error;
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a finding was made, as far as known.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Site {
    /// The tree.
    pub tree: Option<TreeId>,
    /// Logical address of a tree block or an extent.
    pub block: Option<LogicalAddr>,
    /// The item.
    pub key: Option<Key>,
    /// The inode's number, in the tree.
    pub inode: Option<u64>,
    /// The inode's path from the top level, for people.
    pub path: Option<String>,
    /// Device id and byte offset on it.
    pub device: Option<(u64, u64)>,
}

impl Site {
    pub(crate) fn tree(tree: TreeId) -> Self {
        Self {
            tree: Some(tree),
            ..Self::default()
        }
    }
    pub(crate) fn addr(addr: u64) -> Self {
        Self {
            block: Some(LogicalAddr(addr)),
            ..Self::default()
        }
    }
    pub(crate) fn item(tree: TreeId, block: u64, key: Key) -> Self {
        Self {
            tree: Some(tree),
            block: Some(LogicalAddr(block)),
            key: Some(key),
            ..Self::default()
        }
    }
    pub(crate) fn inode(tree: TreeId, inode: u64) -> Self {
        Self {
            tree: Some(tree),
            inode: Some(inode),
            ..Self::default()
        }
    }
    pub(crate) fn device(devid: u64, offset_bytes: u64) -> Self {
        Self {
            device: Some((devid, offset_bytes)),
            ..Self::default()
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        let mut part = |f: &mut fmt::Formatter<'_>, text: String| {
            let done = write!(f, "{gap}{text}");
            gap = ", ";
            done
        };
        if let Some(tree) = self.tree {
            part(f, format!("tree {tree}"))?;
        }
        if let Some(inode) = self.inode {
            part(f, format!("inode {inode}"))?;
        }
        if let Some(path) = &self.path {
            part(f, format!("{path:?}"))?;
        }
        if let Some(block) = self.block {
            part(f, format!("block {block}"))?;
        }
        if let Some(key) = self.key {
            part(f, format!("key {key}"))?;
        }
        if let Some((devid, offset)) = self.device {
            part(f, format!("device {devid} byte {offset}"))?;
        }
        Ok(())
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of fault.
    pub id: FindingId,
    /// How bad it is: always that of the id.
    pub severity: Severity,
    /// Where.
    pub site: Site,
    /// What was found and what was expected, for people.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.severity, self.id)?;
        let site = self.site.to_string();
        if !site.is_empty() {
            write!(f, "{site}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// The sums that `btrfs check` prints too, and a few more.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Bytes of all extents.
    pub bytes_used: u64,
    /// Bytes of the checksums of data.
    pub csum_bytes: u64,
    /// Bytes of all tree blocks.
    pub tree_bytes: u64,
    /// Bytes of the blocks of trees that hold files.
    pub fs_tree_bytes: u64,
    /// Bytes of the blocks of the extent tree.
    pub extent_tree_bytes: u64,
    /// Unused bytes inside tree blocks.
    pub tree_waste_bytes: u64,
    /// Disk bytes behind all file extents, counted once per item.
    pub data_allocated_bytes: u64,
    /// File bytes in all file extents, counted once per item.
    pub data_referenced_bytes: u64,
    /// Number of extents.
    pub extents: u64,
    /// Number of tree blocks.
    pub tree_blocks: u64,
    /// Number of subvolumes, the top level included.
    pub subvolumes: u64,
    /// Number of inodes, counted once per tree that holds them.
    pub inodes: u64,
    /// Data bytes read and compared with their checksums, all copies.
    pub data_verified_bytes: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which they were made; at most [`crate::CheckOptions::kept_per_id_max`] of
    /// each id.
    pub findings: Vec<Finding>,
    /// How often each id was found, kept or not.
    pub counts: BTreeMap<FindingId, u64>,
    /// Sums of what was read.
    pub statistics: Statistics,
}

impl Report {
    /// Nothing is wrong (notes are not wrong).
    pub fn is_clean(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Severity::Note)
    }
    /// The highest severity found.
    pub fn worst(&self) -> Option<Severity> {
        self.counts.keys().map(|id| id.severity()).max()
    }
    /// True where the id was found at least once.
    pub fn has(&self, id: FindingId) -> bool {
        self.counts.contains_key(&id)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        Ok(())
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) report: Report,
    pub(crate) kept_per_id_max: u64,
    /// Set while a tree is walked again for details: everything was said the first time.
    pub(crate) muted: bool,
}

impl Sink {
    pub(crate) fn add(&mut self, id: FindingId, site: Site, message: impl Into<String>) {
        if self.muted {
            return;
        }
        let count = self.report.counts.entry(id).or_default();
        *count = count.saturating_add(1);
        if *count <= self.kept_per_id_max {
            self.report.findings.push(Finding {
                id,
                severity: id.severity(),
                site,
                message: message.into(),
            });
        }
    }
}
