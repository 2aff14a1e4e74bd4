//! The kinds of volumes: sizes of blocks, inodes and directory blocks, and features.

use cowshed_harness::xfs::XfsOptions;
use xfs_format::features::incompat;

/// A kind of volume.
#[derive(Clone, Debug)]
pub struct Kind {
    pub options: XfsOptions,
    pub block_bytes: u64,
    /// Feature bits that this mkfs.xfs may not know, and newer ones set.
    pub incompat: u64,
    /// The volume has another uuid than its metadata.
    pub new_uuid: bool,
}

impl Kind {
    fn new(block_bytes: u64, mkfs: impl AsRef<str>) -> Kind {
        let options = XfsOptions {
            // Images are sparse.
            size_bytes: if block_bytes > 4096 { 8 << 30 } else { 4 << 30 },
            ..XfsOptions::new(format!("-b size={block_bytes} {}", mkfs.as_ref()))
        };
        Kind {
            options,
            block_bytes,
            incompat: 0,
            new_uuid: false,
        }
    }

    pub fn reflink(&self) -> bool {
        !self.options.mkfs.contains("reflink=0")
    }

    pub fn describe(&self) -> String {
        let parent = if self.incompat & incompat::PARENT != 0 {
            ", parent pointers"
        } else {
            ""
        };
        let uuid = if self.new_uuid { ", another uuid" } else { "" };
        format!("{}{parent}{uuid}", self.options.describe())
    }
}

/// Features by themselves: what is on by default is turned off, what is off is turned on.
const FEATURES: [&str; 9] = [
    "-m rmapbt=1",
    "-i nrext64=1",
    "-m rmapbt=1 -i nrext64=1",
    "-m finobt=0,inobtcount=0",
    "-m inobtcount=0",
    "-m reflink=0",
    "-m bigtime=0",
    "-i sparse=0",
    "-m finobt=0,rmapbt=0,reflink=0,bigtime=0,inobtcount=0 -i sparse=0,nrext64=0",
];

/// Sizes of blocks, and of the inodes and directory blocks that go with them.
const SIZES: [(u64, &[u32], &[&str]); 3] = [
    (1024, &[512], &["4k", "64k"]),
    (4096, &[512, 1024, 2048], &["4k", "64k"]),
    (65536, &[512, 1024, 2048], &["64k"]),
];

fn sizes_of(inodes: &'static [u32], dir_blocks: &'static [&str]) -> impl Iterator<Item = String> {
    inodes.iter().flat_map(|inode| {
        dir_blocks
            .iter()
            .map(move |dir_block| format!("-i size={inode} -n size={dir_block}"))
    })
}

/// Each feature with each size.
pub fn crossed() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (block_bytes, inodes, dir_blocks) in SIZES {
        for sizes in sizes_of(inodes, dir_blocks) {
            kinds.extend(FEATURES.map(|feature| Kind::new(block_bytes, format!("{sizes} {feature}"))));
            kinds.push(Kind {
                incompat: incompat::PARENT | incompat::EXCHRANGE,
                ..Kind::new(block_bytes, format!("{sizes} -m rmapbt=1 -i nrext64=1"))
            });
        }
    }
    kinds
}

/// All kinds that the kernel can fill: each size, and each feature with each size of blocks.
pub fn all() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (block_bytes, inodes, dir_blocks) in SIZES {
        kinds.extend(sizes_of(inodes, dir_blocks).map(|sizes| Kind::new(block_bytes, sizes)));
        kinds.extend(FEATURES.map(|feature| Kind::new(block_bytes, feature)));
    }
    let parents = [1024, 4096, 65536].map(|block_bytes| Kind {
        incompat: incompat::PARENT | incompat::EXCHRANGE,
        ..Kind::new(block_bytes, "-m rmapbt=1 -i nrext64=1")
    });
    kinds.extend(parents);
    kinds.push(Kind {
        new_uuid: true,
        ..Kind::new(4096, "")
    });
    let mut large_sectors = Kind::new(4096, "-s size=4k");
    large_sectors.options.sector_bytes = 4096;
    kinds.push(large_sectors);
    let mut striped = Kind::new(4096, "-d su=64k,sw=4");
    striped.options.size_bytes = 4 << 30;
    kinds.push(striped);
    let mut external_log = Kind::new(4096, "");
    external_log.options.log_bytes = Some(64 << 20);
    kinds.push(external_log);
    kinds
}
