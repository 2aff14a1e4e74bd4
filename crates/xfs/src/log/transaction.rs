//! Transactions, put together from the operations of the records that hold them.

use std::collections::HashMap;

use xfs_format::Lsn;
use xfs_format::log::{ByteOrder, ItemType, LogItem, Record, TransHeader, op_flags, operations};
use zerocopy::FromBytes as _;

use super::ends::Ends;
use super::ring::Ring;
use super::walk;
use crate::error::Result;

/// A transaction that was committed.
pub(crate) struct Transaction {
    /// The record with which it begins: what its blocks are stamped with.
    pub lsn: Lsn,
    /// The byte order of its items.
    pub order: ByteOrder,
    regions: Vec<Vec<u8>>,
}

/// An item: its type, and its regions.
pub(crate) type RawItem<'a> = (ItemType, Vec<&'a [u8]>);

impl Transaction {
    /// Its items, as regions. Errors: an unknown item, and regions that are missing.
    pub(crate) fn items(&self, ring: &Ring<'_>) -> Result<Vec<RawItem<'_>>> {
        let block = self.lsn.block();
        let mut regions = self.regions.iter().map(Vec::as_slice);
        let header = regions
            .next()
            .and_then(|region| TransHeader::read_from_prefix(region).ok());
        if header.is_none_or(|(header, _)| !header.has_magic(self.order)) {
            return Err(ring.mismatch(block, "th_magic", "none", "TRAN"));
        }
        let mut items = Vec::new();
        while let Some(first) = regions.next() {
            let (ty, count) = LogItem::head(first, self.order).map_err(|fault| ring.corrupt(block, fault))?;
            let mut item = vec![first];
            item.extend(regions.by_ref().take(usize::from(count).saturating_sub(1)));
            if item.len() != usize::from(count) {
                return Err(ring.mismatch(block, "regions of an item", item.len(), count));
            }
            items.push((ty, item));
        }
        Ok(items)
    }
}

/// Visits the transactions between tail and head in the order of their commits. One without a
/// commit does not count.
pub(crate) fn transactions(
    ring: &Ring<'_>,
    ends: &Ends,
    take: &mut dyn FnMut(&Transaction) -> Result<()>,
) -> Result<()> {
    // Bounded by the log: every byte of a region is one of a record.
    let mut open: HashMap<u32, Transaction> = HashMap::new();
    walk::records(ring, ends.tail, ends.head, &mut |block, record| {
        feed(ring, block, &record, &mut open, take)
    })
}

fn feed(
    ring: &Ring<'_>,
    block: u32,
    record: &Record,
    open: &mut HashMap<u32, Transaction>,
    take: &mut dyn FnMut(&Transaction) -> Result<()>,
) -> Result<()> {
    for operation in operations(&record.body, record.header.num_logops.get()) {
        let operation = operation.map_err(|fault| ring.corrupt(block, fault))?;
        let tid = operation.header.tid.get();
        if operation.has_flag(op_flags::UNMOUNT) {
            continue;
        }
        if operation.has_flag(op_flags::START) {
            let begun = Transaction {
                lsn: record.header.lsn(),
                order: record.header.format().byte_order().unwrap_or(ByteOrder::Little),
                regions: Vec::new(),
            };
            open.insert(tid, begun);
        }
        if operation.has_flag(op_flags::COMMIT) {
            if let Some(transaction) = open.remove(&tid) {
                take(&transaction)?;
            }
            continue;
        }
        // What began before the tail was committed before it.
        let Some(transaction) = open.get_mut(&tid).filter(|_| !operation.data.is_empty()) else {
            continue;
        };
        match transaction.regions.last_mut() {
            Some(last) if operation.has_flag(op_flags::WAS_CONT) => last.extend_from_slice(operation.data),
            _ => transaction.regions.push(operation.data.to_vec()),
        }
    }
    Ok(())
}
