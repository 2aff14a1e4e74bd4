//! `inspect-internal tree-stats`: sizes of trees, and how far apart their blocks lie.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use btrfs_format::view::{self, FileExtentView};
use btrfs_format::{KeyType, TreeBlock, TreeId};
use clap::Args;

use super::super::say::{print, reason};
use super::super::units::Style;
use crate::commands::inspect::btrfs::reader::Reader;

#[derive(Args, Debug)]
pub struct TreeStatsArgs {
    /// Bytes
    #[arg(short = 'b')]
    raw: bool,
    /// A device or image that is not mounted
    device: PathBuf,
}

const TREES: [(&str, TreeId); 4] = [
    ("root", TreeId::ROOT),
    ("extent", TreeId::EXTENT),
    ("csum", TreeId::CSUM),
    ("fs", TreeId::FS),
];

/// Of one tree. A seek is where a block does not follow the one before it under the same parent; a
/// cluster is a run of blocks that a seek ends.
#[derive(Default)]
struct Stats {
    bytes: u64,
    inline_bytes: u64,
    seeks: u64,
    forward: u64,
    seek_bytes: u64,
    clusters: Vec<u64>,
    lowest: Option<u64>,
    highest: u64,
    /// Blocks of each level.
    blocks: Vec<u64>,
}

impl Stats {
    fn walk(&mut self, reader: &Reader, block: &TreeBlock) -> Result<()> {
        let (size, address) = (block.bytes().len() as u64, block.addr().get());
        self.bytes += size;
        let level = usize::from(block.level());
        self.blocks.resize(self.blocks.len().max(level + 1), 0);
        self.blocks[level] += 1;
        self.lowest = Some(self.lowest.map_or(address, |lowest| lowest.min(address)));
        self.highest = self.highest.max(address);
        if block.is_leaf() {
            self.count_inline(block);
            return Ok(());
        }
        let (mut last, mut cluster) = (address, size);
        for slot in 0..block.len() {
            let child = block.child(slot).0.get();
            self.walk(reader, &reader.child(block, slot)?)?;
            if last + size == child {
                cluster += size;
            } else {
                self.seeks += 1;
                self.forward += u64::from(last < child);
                self.seek_bytes += child.abs_diff(last + size);
                if cluster != size {
                    self.clusters.push(cluster);
                }
                cluster = size;
            }
            last = child;
        }
        Ok(())
    }

    fn count_inline(&mut self, leaf: &TreeBlock) {
        for slot in 0..leaf.len() {
            let (key, data) = leaf.item(slot);
            if key.ty == KeyType::EXTENT_DATA
                && let Some(FileExtentView::Inline { data, .. }) = view::file_extent(data)
            {
                self.inline_bytes += data.len() as u64;
            }
        }
    }

    fn text(&self, style: Style, time: Duration, nodesize: u64) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let size = |bytes| style.text(bytes);
        let average = |sum: u64, count: u64| sum.checked_div(count).unwrap_or(0);
        let clusters = self.clusters.len() as u64;
        let _ = writeln!(text, "\tTotal size: {}", size(self.bytes));
        let _ = writeln!(text, "\t\tInline data: {}", size(self.inline_bytes));
        let _ = writeln!(text, "\tTotal seeks: {}", self.seeks);
        let _ = writeln!(text, "\t\tForward seeks: {}", self.forward);
        let _ = writeln!(text, "\t\tBackward seeks: {}", self.seeks - self.forward);
        let _ = writeln!(text, "\t\tAvg seek len: {}", size(average(self.seek_bytes, self.seeks)));
        let _ = writeln!(text, "\tTotal clusters: {}", clusters.max(1));
        let _ = writeln!(
            text,
            "\t\tAvg cluster size: {}",
            size(average(self.clusters.iter().sum(), clusters))
        );
        let _ = writeln!(
            text,
            "\t\tMin cluster size: {}",
            size(self.clusters.iter().copied().min().unwrap_or(0))
        );
        let _ = writeln!(
            text,
            "\t\tMax cluster size: {}",
            size(self.clusters.iter().copied().max().unwrap_or(nodesize))
        );
        let _ = writeln!(
            text,
            "\tTotal disk spread: {}",
            size(self.highest - self.lowest.unwrap_or(0))
        );
        let _ = writeln!(
            text,
            "\tTotal read time: {} s {} us",
            time.as_secs(),
            time.subsec_micros()
        );
        let _ = writeln!(text, "\tLevels: {}", self.blocks.len());
        let _ = writeln!(text, "\tTotal nodes: {}", self.blocks.iter().sum::<u64>());
        for (level, count) in self.blocks.iter().enumerate() {
            let share = match level {
                0 => String::new(),
                _ => format!("  (avg fanout {})", average(self.blocks[level - 1], *count)),
            };
            let _ = writeln!(text, "\t\tOn level {level}: {count:>8}{share}");
        }
        text
    }
}

pub fn run(args: &TreeStatsArgs) -> Result<u8> {
    let shown = args.device.display();
    if let Err(error) = args.device.metadata() {
        bail!("cannot stat '{shown}': {}", reason(&error));
    }
    let Ok(reader) = Reader::open(std::slice::from_ref(&args.device)) else {
        crate::people::warn(format_args!("No valid Btrfs found on {shown}"));
        bail!("cannot open ctree");
    };
    let style = if args.raw { Style::RAW } else { Style::default() };
    for (name, tree) in TREES {
        print(format_args!("Calculating size of {name} tree"))?;
        let Some(root) = reader.root(tree)? else {
            continue;
        };
        let start = Instant::now();
        let mut stats = Stats::default();
        stats.walk(&reader, &reader.block(root)?)?;
        let text = stats.text(style, start.elapsed(), reader.volume.nodesize_bytes().into());
        print(text.trim_end())?;
    }
    Ok(0)
}
