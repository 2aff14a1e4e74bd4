//! Records that are planted behind the end of a clean log: intents that no load leaves at will, and
//! headers that no kernel writes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xfs_format::features::{incompat, log_incompat};
use xfs_format::log::{
    AttrIntentHead, ByteOrder, ItemType, LOG_BLOCK_BYTES, LOG_MAGIC, LogFormat, N16, N32, N64, OpHeader, Operation,
    Record, RecordHeader, TransHeader, client, op_flags,
};
use xfs_format::{Geometry, Lsn, Superblock};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// Regions of a log item.
pub type Regions = Vec<Vec<u8>>;

/// Items are in this order of bytes.
pub const ORDER: ByteOrder = ByteOrder::Little;

/// What a record holds, and a long one.
const RECORD_BYTES: u32 = 32 << 10;
const LONG_RECORD_BYTES: u32 = 256 << 10;

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

/// Says that the log may hold changes of attributes as intents, which Linux sets before it logs the
/// first one of an attribute that is no parent pointer.
pub fn set_logged_attributes(image: &Path) -> Result<()> {
    let (file, mut sb) = open(image)?;
    let bits = sb.features_log_incompat.get() | log_incompat::XATTRS as u32;
    sb.features_log_incompat.set(bits);
    Ok(file.write_all_at(&sb.seal()?, 0)?)
}

/// An ATTRI that takes or gives attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attri<'a> {
    /// An inode and its generation.
    pub ino: (u64, u32),
    /// See [`attri_op`].
    pub op: u32,
    /// The namespace: a bit of `attr_flags`.
    pub filter: u8,
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// For [`attri_op::PARENT_REPLACE`].
    pub new_name: &'a [u8],
    pub new_value: &'a [u8],
}

/// What an ATTRI does.
pub mod attri_op {
    pub const SET: u32 = 1;
    pub const REMOVE: u32 = 2;
    pub const REPLACE: u32 = 3;
    pub const PARENT_SET: u32 = 4;
    pub const PARENT_REMOVE: u32 = 5;
    pub const PARENT_REPLACE: u32 = 6;
}

impl Attri<'_> {
    /// The intent as an item with this id.
    pub fn item(&self, id: u64) -> Regions {
        let regions = [self.name, self.new_name, self.value, self.new_value];
        let regions: Vec<&[u8]> = regions.into_iter().filter(|region| !region.is_empty()).collect();
        // A replacement of a parent pointer has two lengths of 16 bits in the field.
        let name_len = if self.op == attri_op::PARENT_REPLACE {
            (self.name.len() | self.new_name.len() << 16) as u32
        } else {
            self.name.len() as u32
        };
        let head = AttrIntentHead {
            item_type: N16::new(ItemType::Attri.to_raw(), ORDER),
            size: N16::new(1 + regions.len() as u16, ORDER),
            igen: N32::new(self.ino.1, ORDER),
            id: N64::new(id, ORDER),
            ino: N64::new(self.ino.0, ORDER),
            op_flags: N32::new(self.op, ORDER),
            name_len: N32::new(name_len, ORDER),
            value_len: N32::new(self.value.len() as u32, ORDER),
            attr_filter: N32::new(self.filter.into(), ORDER),
        };
        let padded = |region: &[u8]| {
            let mut region = region.to_vec();
            region.resize(region.len().next_multiple_of(4), 0);
            region
        };
        let regions = regions.into_iter().map(padded);
        std::iter::once(head.as_bytes().to_vec()).chain(regions).collect()
    }
}

/// The log of an image as it lies there.
pub struct Log {
    file: File,
    start_bytes: u64,
    uuid: [u8; 16],
    /// The newest record, and the block behind it.
    last: RecordHeader,
    end: u32,
}

impl Log {
    /// Errors: a log that was written around its end.
    pub fn open(image: &Path) -> Result<Log> {
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

    /// Appends a record: one transaction of these items. Returns its place.
    pub fn append(&mut self, items: &[Regions], change: impl FnOnce(&mut RecordHeader)) -> Result<Lsn> {
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
        header.size.set(RECORD_BYTES);
        change(&mut header);
        let body = operations.concat();
        if body.len() > RECORD_BYTES as usize {
            header.size.set(LONG_RECORD_BYTES);
        }
        let record = Record::pack(&header, &body).context("a record that fits")?;
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
