//! The log: its records from tail to head, and the items in them.

use std::collections::HashMap;
use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::log::{
    ByteOrder, LOG_BLOCK_BYTES, LOG_MAGIC, LogItem, Record, RecordHeader, TransHeader, next_cycle, op_flags, operations,
};
use xfs_format::{Lsn, uuid_text};
use zerocopy::FromBytes as _;

use crate::finding::{FindingId, Sink, Site};
use crate::options::CheckOptions;
use crate::volume::{Volume, index};

/// Blocks that may be in flight: eight records of 256 KiB, and their headers.
const WINDOW_BLOCKS: u32 = 8 * (512 + 8);
const BODY_BYTES_MAX: u32 = 256 << 10;

/// What the log says about the volume.
pub(crate) struct Found {
    pub(crate) head: Lsn,
    pub(crate) is_dirty: bool,
}

struct Log {
    device: Arc<dyn BlockDevice>,
    start_bytes: u64,
    blocks: u32,
}

/// A place in the log, and what is wrong there.
type Wrong = (u32, String);

/// Checks the log. `None` where its head could not be found.
pub(crate) fn check(vol: &Volume, options: &CheckOptions<'_>, sink: &mut Sink) -> Option<Found> {
    let (device, start_bytes) = match (vol.geometry.log_start, &options.log_device) {
        (Some(start), _) => (Arc::clone(&vol.device), vol.geometry.daddr(start)?.checked_bytes()?),
        (None, Some(device)) => (Arc::clone(device), 0),
        (None, None) => {
            sink.add(FindingId::LogMissing, Site::default(), "the log was not checked");
            return None;
        }
    };
    let bytes = u64::from(vol.geometry.log_blocks).saturating_mul(vol.geometry.block_bytes.into());
    let blocks = u32::try_from(bytes / 512).unwrap_or(u32::MAX).max(1);
    let log = Log {
        device,
        start_bytes,
        blocks,
    };
    let site = |block: u32| Site {
        daddr: Some((start_bytes / 512).saturating_add(block.into())),
        ..Site::default()
    };
    match log.judge(vol) {
        Ok(found) => {
            if found.is_dirty {
                let what = if options.replay.is_some() {
                    "the state after it is checked"
                } else {
                    "the volume is checked without it"
                };
                sink.add(
                    FindingId::LogDirty,
                    site(found.head.block()),
                    format!("changes up to {}: {what}", found.head),
                );
            }
            Some(found)
        }
        Err((block, message)) => {
            sink.add(
                FindingId::LogInvalid,
                site(block),
                format!("block {block} of the log: {message}"),
            );
            None
        }
    }
}

impl Log {
    /// Reads blocks; behind the last one comes the first one.
    fn read(&self, block: u32, count: u32) -> Result<Vec<u8>, Wrong> {
        let first = block.checked_rem(self.blocks).unwrap_or_default();
        let mut bytes = vec![0; index(count.min(self.blocks)).saturating_mul(LOG_BLOCK_BYTES)];
        let straight = index(self.blocks.saturating_sub(first)).saturating_mul(LOG_BLOCK_BYTES);
        let at = self.start_bytes.saturating_add(u64::from(first).saturating_mul(512));
        let middle = straight.min(bytes.len());
        let (head, tail) = bytes.split_at_mut(middle);
        let read = self.device.read_at(at, head).and_then(|()| match tail.is_empty() {
            true => Ok(()),
            false => self.device.read_at(self.start_bytes, tail),
        });
        read.map_err(|error| (first, error.to_string()))?;
        Ok(bytes)
    }

    fn cycle(&self, block: u32) -> Result<u32, Wrong> {
        Ok(cycle_of(&self.read(block, 1)?))
    }

    fn behind(&self, block: u32, count: u32) -> u32 {
        let sum = u64::from(block).saturating_add(count.into());
        u32::try_from(sum.checked_rem(self.blocks.into()).unwrap_or_default()).unwrap_or_default()
    }
    fn before(&self, block: u32, count: u32) -> u32 {
        self.behind(
            block,
            self.blocks
                .saturating_sub(count.checked_rem(self.blocks).unwrap_or_default()),
        )
    }
    fn distance(&self, from: u32, to: u32) -> u32 {
        self.before(to, from)
    }

    fn judge(&self, vol: &Volume) -> Result<Found, Wrong> {
        let (first, last) = (self.cycle(0)?, self.cycle(self.blocks.saturating_sub(1))?);
        if first == 0 {
            return Ok(Found {
                head: Lsn::new(1, 0),
                is_dirty: false,
            });
        }
        let end = if first == last { 0 } else { self.first_of(last)? };
        let Some((at, header, record)) = self.newest(vol, end)? else {
            return Err((end, "no whole record before the head".to_owned()));
        };
        let len = header.header_blocks().saturating_add(header.body_blocks());
        let head_block = self.behind(at, len);
        let wrapped = u64::from(at).saturating_add(len.into()) >= self.blocks.into();
        let cycle = if wrapped {
            next_cycle(header.cycle.get())
        } else {
            header.cycle.get()
        };
        let head = Lsn::new(cycle, head_block);
        let is_unmounted = header.num_logops.get() == 1
            && operations(&record.body, 1)
                .next()
                .is_some_and(|op| op.is_ok_and(|op| op.has_flag(op_flags::UNMOUNT)));
        if is_unmounted {
            return Ok(Found { head, is_dirty: false });
        }
        let tail = header.tail_lsn();
        if tail > header.lsn() {
            let message = format!("h_tail_lsn is {tail}, expected at most {}", header.lsn());
            return Err((at, message));
        }
        self.live(vol, tail, head)?;
        Ok(Found { head, is_dirty: true })
    }

    /// The first block of the cycle with which the log ends.
    fn first_of(&self, cycle: u32) -> Result<u32, Wrong> {
        let (mut low, mut high) = (0, self.blocks.saturating_sub(1));
        while high.saturating_sub(low) > 1 {
            let middle = low.saturating_add(high.saturating_sub(low) / 2);
            if self.cycle(middle)? == cycle {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(high)
    }

    /// The newest whole record that was written before a place, or a hole before it.
    fn newest(&self, vol: &Volume, end: u32) -> Result<Option<(u32, RecordHeader, Record)>, Wrong> {
        let window = WINDOW_BLOCKS.saturating_mul(2).min(self.blocks);
        let from = self.before(end, window);
        let bytes = self.read(from, window)?;
        let mut headers: Vec<(u32, RecordHeader)> = Vec::new();
        let mut foreign = None;
        for (at, block) in (0_u32..).zip(bytes.chunks_exact(LOG_BLOCK_BYTES)) {
            let place = self.behind(from, at);
            match self.header(vol, place, block) {
                Ok(header) => headers.push((place, header)),
                Err((place, message)) if message.contains("h_fs_uuid") => foreign = Some((place, message)),
                Err(_) => {}
            }
        }
        headers.sort_unstable_by_key(|(_, header)| std::cmp::Reverse(header.lsn()));
        if headers.is_empty()
            && let Some(foreign) = foreign
        {
            return Err(foreign);
        }
        for (place, header) in headers {
            if let Ok(record) = self.record(place, &header) {
                return Ok(Some((place, header, record)));
            }
        }
        Ok(None)
    }

    fn header(&self, vol: &Volume, place: u32, block: &[u8]) -> Result<RecordHeader, Wrong> {
        let (mut header, _) = RecordHeader::read_from_prefix(block).map_err(|_| (place, "no record".to_owned()))?;
        if header.magicno.get() != LOG_MAGIC {
            return Err((
                place,
                format!("magic is {:#x}, expected {LOG_MAGIC:#x}", header.magicno),
            ));
        }
        // mkfs writes a record of one operation that is longer than the size that it states.
        if header.num_logops.get() == 1 && header.size.get() < header.len.get() && header.len.get() <= BODY_BYTES_MAX {
            header.size = header.len;
        }
        header
            .verify(None, self.blocks)
            .map_err(|fault| (place, fault.to_string()))?;
        let uuid = header.fs_uuid;
        if uuid != [0; 16] && uuid != vol.superblock.uuid && uuid != vol.geometry.uuid {
            let expected = uuid_text(&vol.superblock.uuid);
            return Err((place, format!("h_fs_uuid is {}, expected {expected}", uuid_text(&uuid))));
        }
        if header.lsn().block() != place {
            return Err((place, format!("h_lsn is {}, expected block {place}", header.lsn())));
        }
        Ok(header)
    }

    fn record(&self, place: u32, header: &RecordHeader) -> Result<Record, Wrong> {
        let len = header.header_blocks().saturating_add(header.body_blocks());
        if len > self.blocks {
            return Err((place, format!("h_len is {}, longer than the log", header.len)));
        }
        let bytes = self.read(place, len)?;
        let first_wrapped = index(self.blocks.saturating_sub(place));
        Record::unpack_wrapped(&bytes, first_wrapped).map_err(|fault| (place, fault.to_string()))
    }

    /// Records from tail to head, their transactions and items.
    fn live(&self, vol: &Volume, tail: Lsn, head: Lsn) -> Result<(), Wrong> {
        let mut at = tail.block().checked_rem(self.blocks).unwrap_or_default();
        let mut left = self.distance(at, head.block());
        // Regions of transactions that are not committed yet.
        let mut open: HashMap<u32, Vec<Vec<u8>>> = HashMap::new();
        while left > 0 {
            let header = self.header(vol, at, &self.read(at, 1)?)?;
            let record = self.record(at, &header)?;
            feed(at, &record, &mut open)?;
            let len = header.header_blocks().saturating_add(header.body_blocks());
            if len > left {
                return Err((
                    at,
                    format!("a record of {len} blocks, expected at most {left} to the head"),
                ));
            }
            at = self.behind(at, len);
            left = left.saturating_sub(len);
        }
        Ok(())
    }
}

fn feed(at: u32, record: &Record, open: &mut HashMap<u32, Vec<Vec<u8>>>) -> Result<(), Wrong> {
    let order = record.header.format().byte_order().unwrap_or(ByteOrder::Little);
    for operation in operations(&record.body, record.header.num_logops.get()) {
        let operation = operation.map_err(|fault| (at, fault.to_string()))?;
        let tid = operation.header.tid.get();
        if operation.has_flag(op_flags::START) {
            open.insert(tid, Vec::new());
        }
        if operation.has_flag(op_flags::COMMIT) {
            if let Some(regions) = open.remove(&tid) {
                items(&regions, order).map_err(|message| (at, message))?;
            }
            continue;
        }
        let Some(regions) = open.get_mut(&tid).filter(|_| !operation.data.is_empty()) else {
            continue;
        };
        match regions.last_mut() {
            Some(last) if operation.has_flag(op_flags::WAS_CONT) => last.extend_from_slice(operation.data),
            _ => regions.push(operation.data.to_vec()),
        }
    }
    Ok(())
}

/// Reads the items of a transaction.
fn items(regions: &[Vec<u8>], order: ByteOrder) -> Result<(), String> {
    let mut regions = regions.iter().map(Vec::as_slice);
    let header = regions
        .next()
        .and_then(|region| TransHeader::read_from_prefix(region).ok());
    if header.is_none_or(|(header, _)| !header.has_magic(order)) {
        return Err("a transaction without its header".to_owned());
    }
    while let Some(first) = regions.next() {
        let (ty, count) = LogItem::head(first, order).map_err(|fault| fault.to_string())?;
        let mut item = vec![first];
        item.extend(regions.by_ref().take(usize::from(count).saturating_sub(1)));
        if item.len() != usize::from(count) {
            return Err(format!("{}: {} regions, expected {count}", ty.name(), item.len()));
        }
        LogItem::read(&item, order).map_err(|fault| fault.to_string())?;
    }
    Ok(())
}

/// The cycle of a block: its first word, but for the first block of a record.
fn cycle_of(block: &[u8]) -> u32 {
    let word = |at: usize| {
        let bytes = block.get(at..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    };
    match word(0) {
        LOG_MAGIC => word(4),
        cycle => cycle,
    }
}
