//! Records that are planted behind the end of a clean log: intents that no load leaves at will, and
//! headers that no kernel writes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xfs_format::features::incompat;
use xfs_format::log::{
    ByteOrder, LOG_BLOCK_BYTES, LOG_MAGIC, LogFormat, OpHeader, Operation, Record, RecordHeader, TransHeader, client,
    op_flags,
};
use xfs_format::{Geometry, Lsn, Superblock};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// Regions of a log item.
pub type Regions = Vec<Vec<u8>>;

/// Items are in this order of bytes.
pub const ORDER: ByteOrder = ByteOrder::Little;

fn open(image: &Path) -> Result<(File, Superblock)> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let mut sector = vec![0; 512];
    file.read_exact_at(&mut sector, 0)?;
    let sb = Superblock::verify(&sector)?;
    Ok((file, sb))
}

/// Sets bits of newer kernels on a fresh volume: exchange and parent pointers. Its root has no
/// parent, so nothing else has to change.
pub fn set_new_bits(image: &Path) -> Result<()> {
    let (file, sb) = open(image)?;
    let mut sector = vec![0; 512];
    let group_bytes = u64::from(sb.agblocks.get()) * u64::from(sb.blocksize.get());
    for group in 0..u64::from(sb.agcount.get()) {
        file.read_exact_at(&mut sector, group * group_bytes)?;
        let mut sb = Superblock::verify_copy(&sector)?;
        let bits = sb.features_incompat.get() | (incompat::EXCHRANGE | incompat::PARENT) as u32;
        sb.features_incompat.set(bits);
        file.write_all_at(&sb.seal()?, group * group_bytes)?;
    }
    Ok(())
}

/// The log of an image as it lies there.
struct Log {
    file: File,
    start_bytes: u64,
    uuid: [u8; 16],
    /// The newest record, and the block behind it.
    last: RecordHeader,
    end: u32,
}

impl Log {
    /// Errors: a log that was written around its end.
    fn open(image: &Path) -> Result<Log> {
        let (file, sb) = open(image)?;
        let geometry = Geometry::new(&sb)?;
        let start = geometry.log_start.and_then(|start| geometry.daddr(start));
        let start_bytes = start.and_then(|daddr| daddr.checked_bytes()).context("a log inside")?;
        let mut bytes = vec![0; geometry.log_blocks as usize * geometry.block_bytes as usize];
        file.read_exact_at(&mut bytes, start_bytes)?;
        let is_header = |block: &&[u8]| block.starts_with(&LOG_MAGIC.to_be_bytes());
        let blocks = bytes.chunks_exact(LOG_BLOCK_BYTES).filter(is_header);
        let headers = blocks.filter_map(|block| Some(RecordHeader::read_from_prefix(block).ok()?.0));
        let last = headers.max_by_key(RecordHeader::lsn).context("a record")?;
        ensure!(last.cycle.get() == 1, "the log was written around its end");
        let end = last.lsn().block() + last.header_blocks() + last.body_blocks();
        Ok(Log {
            file,
            start_bytes,
            uuid: geometry.uuid,
            last,
            end,
        })
    }

    fn append(&mut self, items: &[Regions], change: impl FnOnce(&mut RecordHeader)) -> Result<Lsn> {
        const TID: u32 = 0x7261_6c66;
        let operation = |flags: u8, data: &[u8]| {
            let mut header = OpHeader::new_zeroed();
            header.tid.set(TID);
            header.len.set(data.len() as u32);
            header.clientid = client::TRANSACTION;
            header.flags = flags;
            Operation { header, data }.to_bytes()
        };
        let head = TransHeader::new(40, TID, items.len() as u32, ORDER);
        let mut operations = vec![operation(op_flags::START, &[]), operation(0, head.as_bytes())];
        operations.extend(items.iter().flatten().map(|region| operation(0, region)));
        operations.push(operation(op_flags::COMMIT, &[]));

        let lsn = Lsn::new(1, self.end);
        let mut header = RecordHeader::new_zeroed();
        header.cycle.set(1);
        header.version.set(2);
        header.lsn.set(lsn.0);
        header.tail_lsn.set(lsn.0);
        header.prev_block.set(self.last.lsn().block());
        header.num_logops.set(operations.len() as u32);
        header.fmt.set(LogFormat::LinuxLittle.to_raw());
        header.fs_uuid = self.uuid;
        header.size.set(32 << 10);
        change(&mut header);
        let record = Record::pack(&header, &operations.concat()).context("a record that fits")?;
        let at = self.start_bytes + u64::from(self.end) * LOG_BLOCK_BYTES as u64;
        self.file.write_all_at(&record, at)?;
        self.end += (record.len() / LOG_BLOCK_BYTES) as u32;
        self.last = header;
        Ok(lsn)
    }
}

/// Appends a record to a clean log: one transaction of these items, which is the log's tail, too,
/// unless `change` says otherwise. Returns its place.
pub fn append(image: &Path, items: &[Regions], change: impl FnOnce(&mut RecordHeader)) -> Result<Lsn> {
    Log::open(image)?.append(items, change)
}
