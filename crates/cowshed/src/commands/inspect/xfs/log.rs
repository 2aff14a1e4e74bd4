//! `inspect log`: the records of the log as they lie there, whether recovery would use them or not.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use cowshed_device::BlockDevice;
use xfs_format::log::{LOG_BLOCK_BYTES, LOG_MAGIC, Record, RecordHeader, operations};
use xfs_format::render::{Val, operation_report, record_report};
use zerocopy::FromBytes as _;

use super::printer::Printer;
use super::reader::{self, Reader};

#[derive(Args, Debug)]
pub struct LogArgs {
    /// Image file or block device
    pub target: PathBuf,
    /// The device of the log, where it is not that of the volume
    #[arg(long, value_name = "DEVICE")]
    logdev: Option<PathBuf>,
    /// The operations in each record, too
    #[arg(short, long)]
    operations: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Blocks that are read at once in search of records.
const STEP_BLOCKS: u64 = 2048;

struct Place<'a> {
    device: &'a dyn BlockDevice,
    start_bytes: u64,
    blocks: u64,
}

impl Place<'_> {
    /// Some blocks from one on; the log is a ring.
    fn read(&self, block: u64, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(count)? * LOG_BLOCK_BYTES];
        let first = count.min(self.blocks - block);
        let (head, tail) = bytes.split_at_mut(usize::try_from(first)? * LOG_BLOCK_BYTES);
        let at = |block: u64| self.start_bytes + block * LOG_BLOCK_BYTES as u64;
        self.device.read_at(at(block), head)?;
        if !tail.is_empty() {
            self.device.read_at(at(0), tail)?;
        }
        Ok(bytes)
    }

    /// Headers that this volume's log may have, with their blocks, the oldest first.
    fn headers(&self, reader: &Reader) -> Result<Vec<(u64, RecordHeader)>> {
        let sb = &reader.superblock;
        let uuids = [sb.uuid, sb.metadata_uuid()];
        let log_blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
        let mut found = Vec::new();
        for start in (0..self.blocks).step_by(STEP_BLOCKS as usize) {
            let bytes = self.read(start, STEP_BLOCKS.min(self.blocks - start))?;
            for (at, block) in bytes.chunks_exact(LOG_BLOCK_BYTES).enumerate() {
                if !block.starts_with(&LOG_MAGIC.to_be_bytes()) {
                    continue;
                }
                let Ok((header, _)) = RecordHeader::read_from_prefix(block) else {
                    continue;
                };
                // Other bytes can look like a header.
                if uuids.iter().any(|uuid| header.verify(Some(uuid), log_blocks).is_ok()) {
                    found.push((start + at as u64, header));
                }
            }
        }
        found.sort_by_key(|(_, header)| header.lsn());
        Ok(found)
    }
}

pub fn run(args: &LogArgs) -> Result<u8> {
    let reader = Reader::open(&args.target)?;
    let external = args.logdev.as_deref().map(reader::open_device).transpose()?;
    let geometry = &reader.geometry;
    let (device, start_bytes) = match (geometry.log_start, &external) {
        (Some(start), _) => {
            let start = geometry.daddr(start).and_then(|daddr| daddr.checked_bytes());
            (reader.device(), start.context("the log lies outside of the volume")?)
        }
        (None, Some(device)) => (&**device, 0),
        (None, None) => anyhow::bail!("the volume has an external log: name its device with --logdev"),
    };
    let bytes = u64::from(geometry.log_blocks) * u64::from(geometry.block_bytes);
    let place = Place {
        device,
        start_bytes,
        blocks: bytes / LOG_BLOCK_BYTES as u64,
    };
    let mut printer = Printer::new(args.json)?;
    for (block, header) in place.headers(&reader)? {
        let mut report = record_report(&header);
        if args.operations {
            match operations_of(&place, block, &header) {
                Ok(list) => report.set("operations", list),
                Err(error) => printer.bad(&error.context(format!("record at block {block}"))),
            }
        }
        printer.show("record", &[("block", block)], &report)?;
    }
    printer.finish()
}

fn operations_of(place: &Place<'_>, block: u64, header: &RecordHeader) -> Result<Val> {
    let blocks = u64::from(header.header_blocks()) + u64::from(header.body_blocks());
    if blocks > place.blocks {
        anyhow::bail!("it is longer than the log");
    }
    let record = Record::unpack(&place.read(block, blocks)?)?;
    let mut list = Vec::new();
    for operation in operations(&record.body, header.num_logops.get()) {
        list.push(Val::Report(operation_report(&operation?)));
    }
    Ok(Val::List(list))
}
