//! The log of a volume as we decode it: its records from the start of a log that was not written
//! around its end, what each operation is, and the items.

use std::collections::BTreeMap;

use xfs_format::log::{
    ByteOrder, ItemType, LOG_BLOCK_BYTES, LOG_MAGIC, LogItem, Operation, Record, RecordHeader, TransHeader, op_flags,
    operations,
};
use zerocopy::FromBytes;

use super::Volume;

/// What the data of an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No data: it begins or commits a transaction.
    Mark,
    Unmount,
    /// The header of a transaction.
    Trans,
    /// A region of an item: the item's place in [`Log::items`], and which region.
    Region {
        item: usize,
        region: usize,
    },
    /// A part of a region that was split between records.
    Part {
        item: Option<usize>,
    },
}

/// The regions of an item.
#[derive(Clone, Debug)]
pub struct Regions {
    pub ty: ItemType,
    pub regions: Vec<Vec<u8>>,
    pub order: ByteOrder,
    size: usize,
}

impl Regions {
    pub fn decode(&self) -> LogItem<'_> {
        let regions: Vec<&[u8]> = self.regions.iter().map(Vec::as_slice).collect();
        LogItem::read(&regions, self.order).unwrap_or_else(|e| panic!("{e}: {regions:x?}"))
    }
}

/// A committed transaction: the lower half of its id, its header, and the places of its items.
pub struct Transaction {
    pub tid: u32,
    pub header: TransHeader,
    pub items: Vec<usize>,
}

pub struct LogRecord {
    pub record: Record,
    /// One for each operation.
    pub roles: Vec<Role>,
}

impl LogRecord {
    pub fn operations(&self) -> Vec<Operation<'_>> {
        let count = self.record.header.num_logops.get();
        operations(&self.record.body, count)
            .map(|operation| operation.unwrap_or_else(|e| panic!("{e}")))
            .collect()
    }
}

pub struct Log {
    pub records: Vec<LogRecord>,
    pub items: Vec<Regions>,
    pub transactions: Vec<Transaction>,
}

/// A transaction that is not committed yet.
#[derive(Default)]
struct Open {
    header: Option<TransHeader>,
    items: Vec<usize>,
    /// The item still lacks regions.
    is_in_item: bool,
    /// A region whose end is in the next record.
    part: Vec<u8>,
}

impl Log {
    pub fn empty() -> Self {
        Self {
            records: Vec::new(),
            items: Vec::new(),
            transactions: Vec::new(),
        }
    }

    pub fn read(volume: &Volume) -> Self {
        let g = &volume.geometry;
        let start = g.log_start.and_then(|start| g.daddr(start)).expect("a log inside");
        let bytes = volume.read(start, g.log_blocks * g.block_bytes);
        let mut log = Self::empty();
        let mut open = BTreeMap::<u32, Open>::new();
        let mut rest = bytes.as_slice();
        while rest.starts_with(&LOG_MAGIC.to_be_bytes()) {
            let header = RecordHeader::read_from_prefix(rest).expect("a whole block").0;
            if header.cycle.get() == 0 {
                // Linux clears blocks in front of the head with headers of the cycle before.
                break;
            }
            let blocks = (bytes.len() / LOG_BLOCK_BYTES) as u32;
            header.verify(Some(&g.uuid), blocks).unwrap_or_else(|e| panic!("{e}"));
            let at = (bytes.len() - rest.len()) / LOG_BLOCK_BYTES;
            assert_eq!(
                (header.cycle.get(), header.lsn().block() as usize),
                (1, at),
                "the log was written around its end"
            );
            let len = (header.header_blocks() + header.body_blocks()) as usize * LOG_BLOCK_BYTES;
            let record = Record::unpack(&rest[..len]).unwrap_or_else(|e| panic!("{e}"));
            rest = &rest[len..];
            let order = header.format().byte_order().expect("an order of bytes");
            let mut record = LogRecord {
                record,
                roles: Vec::new(),
            };
            record.roles = record
                .operations()
                .iter()
                .map(|operation| log.operation(&mut open, operation, order))
                .collect();
            log.records.push(record);
        }
        log
    }

    fn operation(&mut self, all: &mut BTreeMap<u32, Open>, operation: &Operation<'_>, order: ByteOrder) -> Role {
        let tid = operation.header.tid.get();
        if operation.has_flag(op_flags::UNMOUNT) {
            return Role::Unmount;
        }
        if operation.has_flag(op_flags::START) {
            let before = all.insert(tid, Open::default());
            assert!(before.is_none(), "transaction {tid:x} begins twice");
            return Role::Mark;
        }
        if operation.has_flag(op_flags::COMMIT) {
            let done = all.remove(&tid).expect("a transaction that began");
            assert!(
                !done.is_in_item && done.part.is_empty(),
                "transaction {tid:x} ends early"
            );
            self.transactions.push(Transaction {
                tid,
                header: done.header.expect("a header"),
                items: done.items,
            });
            return Role::Mark;
        }
        let open = all.get_mut(&tid).expect("a transaction that began");
        let is_part = operation.has_flag(op_flags::CONTINUE) || operation.has_flag(op_flags::WAS_CONT);
        open.part.extend_from_slice(operation.data);
        if operation.has_flag(op_flags::CONTINUE) {
            let item = open.items.last().copied().filter(|_| open.is_in_item);
            return Role::Part { item };
        }
        let role = self.region(open, order);
        match role {
            Role::Region { item, .. } if is_part => Role::Part { item: Some(item) },
            Role::Trans if is_part => Role::Part { item: None },
            other => other,
        }
    }

    fn region(&mut self, open: &mut Open, order: ByteOrder) -> Role {
        let bytes = std::mem::take(&mut open.part);
        if open.header.is_none() {
            let header = TransHeader::read_from_bytes(&bytes).expect("the header of a transaction");
            assert!(header.has_magic(order));
            open.header = Some(header);
            return Role::Trans;
        }
        if !open.is_in_item {
            let (ty, size) = LogItem::head(&bytes, order).unwrap_or_else(|e| panic!("{e}"));
            open.items.push(self.items.len());
            self.items.push(Regions {
                ty,
                regions: Vec::new(),
                order,
                size: size.into(),
            });
        }
        let at = *open.items.last().expect("an item");
        let item = &mut self.items[at];
        item.regions.push(bytes);
        open.is_in_item = item.regions.len() < item.size;
        Role::Region {
            item: at,
            region: item.regions.len() - 1,
        }
    }
}
