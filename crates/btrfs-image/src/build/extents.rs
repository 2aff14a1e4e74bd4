//! Where the data of files is.

use btrfs_format::LogicalAddr;

use crate::plan::Space;

/// An extent of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Where it is in the file.
    pub offset_bytes: u64,
    pub addr: LogicalAddr,
    pub disk_bytes: u64,
    /// What it holds, in whole sectors.
    pub ram_bytes: u64,
    pub compression: u8,
}

/// The data of a file that lies in its item.
#[derive(Debug)]
pub(super) struct InlineData {
    pub bytes: Box<[u8]>,
    /// As the item counts it.
    pub len_bytes: usize,
    pub ram_bytes: u64,
    pub compression: u8,
}

/// Where the data of an inode is.
#[derive(Debug, Default)]
pub(super) enum FileData {
    #[default]
    None,
    Inline(Box<InlineData>),
    /// A stretch of [`DataMap::extents`].
    Extents {
        start: usize,
        count: usize,
    },
}

/// Checksums of consecutive sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct CsumRun {
    pub addr: LogicalAddr,
    pub sectors: u64,
}

/// Where all data is.
#[derive(Debug, Default)]
pub(super) struct DataMap {
    /// Of all inodes, subvolume by subvolume.
    pub files: Vec<FileData>,
    /// In the order of their addresses, those of a file one after the other.
    pub extents: Vec<Extent>,
    pub csum_runs: Vec<CsumRun>,
    /// One after the other, in the order of the runs. Empty where nothing was read.
    pub csums: Vec<u8>,
    /// What is taken of the chunks.
    pub space: Space,
    pub incompat_bits: u64,
    /// Bytes of the files, without holes.
    pub content_bytes: u64,
}

impl DataMap {
    pub fn disk_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.disk_bytes).sum()
    }
}
