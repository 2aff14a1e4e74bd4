//! What the checker says: findings under stable ids, counted without bound and kept up to a bound.

use std::collections::BTreeMap;
use std::fmt;

use xfs_format::{AgBlock, AgNumber, Corrupt, CorruptKind, FsBlock, Geometry, Ino};

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
            /// What it means, in one line.
            pub fn meaning(self) -> String {
                let doc = match self { $(Self::$name => concat!($($doc),+)),+ };
                doc.trim().to_owned()
            }
        }
    };
}

finding_ids! {
    // The volume.
    /// The superblock of group 0 cannot be used: the check ends.
    SuperInvalid = "super-invalid", Error;
    /// A feature that this checker does not support: the check ends.
    UnsupportedFeature = "unsupported-feature", Error;
    /// A repair was interrupted, and has to be finished.
    NeedsRepair = "needs-repair", Error;
    /// The device is shorter than the superblock says.
    DeviceShort = "device-short", Error;
    /// The superblock of another group is damaged, or describes another volume.
    SuperCopy = "super-copy", Error;
    /// A counter of the superblock is not the sum over the groups.
    SuperCounters = "super-counters", Error;
    /// An inode that the superblock names is not in use, or of the wrong type.
    SuperInode = "super-inode", Error;

    // The log.
    /// The log holds changes that are not in their places yet.
    LogDirty = "log-dirty", Note;
    /// A record or an item of the log is damaged, or the log cannot be replayed.
    LogInvalid = "log-invalid", Error;
    /// The log lies on a device that was not given.
    LogMissing = "log-missing", Note;

    // Blocks of any kind.
    /// The device failed to read a block.
    BlockUnreadable = "block-unreadable", Error;
    /// A block is of another kind.
    BlockMagic = "block-magic", Error;
    /// A block does not match its checksum.
    BlockCrc = "block-crc", Error;
    /// A block names another volume, address or owner.
    BlockIdentity = "block-identity", Error;
    /// A block is newer than the log.
    BlockLsn = "block-lsn", Error;
    /// Blocks have two owners.
    BlockTwice = "block-claimed-twice", Error;
    /// Blocks are neither free nor in use.
    BlockLost = "block-lost", Error;

    // Allocation groups.
    /// The header of a group's free space has values that are not allowed.
    AgfInvalid = "agf-invalid", Error;
    /// A count in the header of a group's free space is wrong.
    AgfCount = "agf-count", Error;
    /// The header of a group's inodes has values that are not allowed.
    AgiInvalid = "agi-invalid", Error;
    /// A count in the header of a group's inodes is wrong.
    AgiCount = "agi-count", Error;
    /// A group's list of spare blocks is malformed.
    AgflInvalid = "agfl-invalid", Error;
    /// A block of a B-tree has values that are not allowed.
    BtreeInvalid = "btree-invalid", Error;
    /// A block of a B-tree names the wrong neighbours.
    BtreeSiblings = "btree-siblings", Error;
    /// A key in a node is not that of its child, or keys do not rise from block to block.
    BtreeKeys = "btree-keys", Error;
    /// A block of a B-tree has fewer records than half of the most.
    BtreeUnderfull = "btree-underfull", Error;
    /// The two trees of free space differ.
    FreeSpaceMismatch = "free-space-mismatch", Error;
    /// Space in use is free in the tree of free space: a write may destroy it.
    FreeSpaceInUse = "free-space-in-use", Error;
    /// Chunks of inodes overlap or are not aligned.
    ChunkInvalid = "inode-chunk-invalid", Error;
    /// The tree of chunks with free inodes differs from that of all chunks.
    FinobtMismatch = "finobt-mismatch", Error;
    /// Blocks in use have no record of their owner.
    RmapMissing = "rmap-missing", Error;
    /// A record of an owner that does not use the blocks.
    RmapStale = "rmap-stale", Error;
    /// The count of references to shared blocks is wrong.
    RefcountWrong = "refcount-wrong", Error;
    /// Blocks staged for copy on write were left: the next mount frees them.
    CowStaging = "cow-staging", Note;

    // Inodes.
    /// An inode has values that are not allowed.
    InodeInvalid = "inode-invalid", Error;
    /// An inode is free by its chunk, and in use by itself.
    InodeNotFree = "inode-not-free", Error;
    /// An inode is in use by its chunk, and free by itself.
    InodeMissing = "inode-missing", Error;
    /// The count of blocks of an inode is wrong.
    InodeBlocks = "inode-nblocks", Error;
    /// The count of extents of a fork is wrong.
    InodeExtents = "inode-nextents", Error;
    /// A file has shared blocks, but no flag that says so.
    InodeReflink = "inode-reflink", Error;
    /// The link count of an inode is not the number of its names.
    InodeNlink = "inode-nlink", Error;
    /// An inode in use has no name.
    InodeDisconnected = "inode-disconnected", Error;
    /// Extents of a fork overlap, or lie where none may be.
    ExtentInvalid = "extent-invalid", Error;
    /// A list of unlinked inodes is malformed, or has an inode that has names.
    UnlinkedList = "unlinked-list", Error;
    /// An inode without links is on no list of unlinked inodes: its space is never freed.
    UnlinkedMissing = "unlinked-missing", Error;
    /// The target of a symbolic link is damaged.
    SymlinkInvalid = "symlink-invalid", Error;

    // Directories.
    /// A block of a directory is malformed or missing.
    DirInvalid = "dir-invalid", Error;
    /// The index by hash differs from the entries.
    DirHash = "dir-hash", Error;
    /// The index of free space differs from the data blocks.
    DirFree = "dir-free", Error;
    /// The size of a directory is not that of its data blocks.
    DirSize = "dir-size", Error;
    /// The entries "." or ".." are missing or wrong.
    DirDots = "dir-dots", Error;
    /// Two entries of a directory have the same name.
    DirNameTwice = "dir-name-twice", Error;
    /// A directory entry of an inode that is not in use.
    DirEntryDangling = "dir-entry-dangling", Error;
    /// A directory entry's type is not its inode's.
    DirEntryType = "dir-entry-type", Error;
    /// ".." of a directory is not the directory that has its name.
    DirParent = "dir-parent", Error;
    /// A directory has several names.
    DirLinks = "dir-several-names", Error;

    // Attributes.
    /// A block of attributes is malformed or missing.
    AttrInvalid = "attr-invalid", Error;
    /// The hash tree of attributes has wrong hashes, levels or neighbours.
    AttrHash = "attr-hash", Error;
    /// The value of an attribute is damaged or incomplete.
    AttrValue = "attr-value", Error;
    /// An access list is malformed.
    AclInvalid = "acl-invalid", Error;
    /// The names of an inode do not match its parent pointers.
    ParentMismatch = "parent-mismatch", Error;

    // Quotas.
    /// A quota has values that are not allowed.
    QuotaInvalid = "quota-invalid", Error;
    /// The usage in a quota is not that of its files.
    QuotaCount = "quota-count", Error;

    /// Parts could not be read: what depends on them was not compared.
    Incomplete = "incomplete", Warning;
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a finding was made, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Site {
    /// The allocation group.
    pub group: Option<AgNumber>,
    /// The block within the group.
    pub block: Option<AgBlock>,
    /// The inode's number.
    pub inode: Option<Ino>,
    /// The address on the device, in units of 512 bytes.
    pub daddr: Option<u64>,
    /// The record, entry or pointer, from 0.
    pub slot: Option<u32>,
}

impl Site {
    pub(crate) fn group(group: AgNumber) -> Self {
        Self {
            group: Some(group),
            ..Self::default()
        }
    }
    pub(crate) fn block(group: AgNumber, block: AgBlock) -> Self {
        Self {
            group: Some(group),
            block: Some(block),
            ..Self::default()
        }
    }
    pub(crate) fn inode(ino: Ino) -> Self {
        Self {
            inode: Some(ino),
            ..Self::default()
        }
    }
    pub(crate) fn with_block(self, geometry: &Geometry, block: FsBlock) -> Self {
        match geometry.split(block) {
            Some((group, block)) => Self {
                group: Some(group),
                block: Some(block),
                ..self
            },
            None => self,
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
        if let Some(inode) = self.inode {
            part(f, format!("inode {inode}"))?;
        }
        if let Some(group) = self.group {
            part(f, format!("group {group}"))?;
        }
        if let Some(block) = self.block {
            part(f, format!("block {block}"))?;
        }
        if let Some(daddr) = self.daddr {
            part(f, format!("daddr {daddr}"))?;
        }
        if let Some(slot) = self.slot {
            part(f, format!("slot {slot}"))?;
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

/// Sums of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// True where the superblock could be used, and the volume was checked.
    pub was_checked: bool,
    /// Allocation groups.
    pub groups: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Entries of directories, "." and ".." not counted.
    pub entries: u64,
    /// Extents of files, directories and attributes.
    pub extents: u64,
    /// Blocks of B-trees of groups and files.
    pub tree_blocks: u64,
    /// Free bytes by the trees of free space.
    pub free_bytes: u64,
    /// Bytes of the volume.
    pub total_bytes: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By phase and group; at most [`crate::CheckOptions::kept_per_id_max`] of each id.
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

/// Collects findings: one for each thread, joined in the order of the groups.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) report: Report,
    pub(crate) kept_per_id_max: u64,
    /// Something could not be read: sums and comparisons over the whole volume mean nothing.
    pub(crate) is_incomplete: bool,
}

impl Sink {
    pub(crate) fn new(kept_per_id_max: u64) -> Self {
        Self {
            kept_per_id_max,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, id: FindingId, site: Site, message: impl Into<String>) {
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

    /// A structure that could not be used at all.
    pub(crate) fn broken(&mut self, id: FindingId, site: Site, message: impl Into<String>) {
        self.is_incomplete = true;
        self.add(id, site, message);
    }

    /// What a verifier refused, under the id for the contents of such a block.
    pub(crate) fn corrupt(&mut self, fault: &Corrupt, site: Site, contents: FindingId) {
        let id = match &fault.kind {
            CorruptKind::Magic { .. } => FindingId::BlockMagic,
            CorruptKind::Crc { .. } => FindingId::BlockCrc,
            CorruptKind::Mismatch {
                field: "uuid" | "blkno" | "owner" | "seqno",
                ..
            } if contents != FindingId::QuotaInvalid => FindingId::BlockIdentity,
            CorruptKind::Mismatch { field: "lsn", .. } => FindingId::BlockLsn,
            _ => contents,
        };
        let site = Site {
            daddr: fault.site.daddr.map(|daddr| daddr.get()),
            slot: fault.site.slot.or(site.slot),
            ..site
        };
        let message = format!("{}: {}", fault.site.what, fault.kind);
        // A block that is sound but for its LSN can be used, but verifiers give nothing then.
        self.broken(id, site, message);
    }

    /// Takes over what another thread found.
    pub(crate) fn join(&mut self, other: Self) {
        self.is_incomplete |= other.is_incomplete;
        for finding in other.report.findings {
            let kept = self.report.findings.iter().filter(|kept| kept.id == finding.id).count();
            if u64::try_from(kept).unwrap_or(u64::MAX) < self.kept_per_id_max {
                self.report.findings.push(finding);
            }
        }
        for (id, count) in other.report.counts {
            let sum = self.report.counts.entry(id).or_default();
            *sum = sum.saturating_add(count);
        }
        let (sums, more) = (&mut self.report.statistics, other.report.statistics);
        for (sum, more) in [
            (&mut sums.inodes, more.inodes),
            (&mut sums.directories, more.directories),
            (&mut sums.entries, more.entries),
            (&mut sums.extents, more.extents),
            (&mut sums.tree_blocks, more.tree_blocks),
            (&mut sums.free_bytes, more.free_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}
