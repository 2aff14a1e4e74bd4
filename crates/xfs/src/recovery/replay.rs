//! The two passes over the log.

use std::collections::BTreeMap;

use xfs_format::inode::mode;
use xfs_format::log::{BufFormat, BufType, ItemType, LogItem, inode_fields};
use xfs_format::{Daddr, Superblock};

use super::buffers;
use super::cancels::Cancels;
use super::disk::Disk;
use super::dquots::Quotas;
use super::finish::Parts;
use super::inodes;
use super::intents::{Intents, Pending};
use crate::error::{Error, Result};
use crate::log::{Ends, Ring, Transaction, transactions};

/// What was replayed.
#[derive(Default)]
pub(super) struct Replayed {
    pub transactions: u64,
    pub items: BTreeMap<&'static str, u64>,
    pub unfinished: Vec<Pending>,
}

struct Pass<'a, 'd> {
    ring: &'a Ring<'d>,
    cancels: Cancels,
    quotas: Quotas,
    intents: Intents,
    /// Buffers that changed and get the LSN of their transaction. Those of one LSN together: what
    /// is stamped already would look newer to the next transaction of the same record.
    unstamped: BTreeMap<(Daddr, u32), BufType>,
    parts: Parts,
    replayed: Replayed,
}

/// Replays the log. What is wrong with an item says where in the log it lies.
pub(super) fn replay(disk: &mut Disk, ring: &Ring<'_>, ends: &Ends, sb: &Superblock) -> Result<Replayed> {
    let mut pass = Pass {
        ring,
        cancels: Cancels::default(),
        quotas: Quotas::new(sb),
        intents: Intents::default(),
        unstamped: BTreeMap::new(),
        parts: Parts::default(),
        replayed: Replayed::default(),
    };
    transactions(ring, ends, &mut |transaction| pass.gather(transaction))?;
    transactions(ring, ends, &mut |transaction| pass.apply(disk, transaction))?;
    pass.stamp(disk)?;
    std::mem::take(&mut pass.parts).seal(disk)?;
    pass.replayed.unfinished = pass.intents.into_unfinished();
    Ok(pass.replayed)
}

/// The order in which the items of a transaction are replayed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Buffers,
    Others,
    InodeBuffers,
    Cancels,
}

fn turn(item: &LogItem<'_>) -> Turn {
    match item {
        LogItem::Buf(buf) if buf.format.is_cancel() => Turn::Cancels,
        LogItem::Buf(buf) if buf.format.flags & xfs_format::log::buf_flags::INODE != 0 => Turn::InodeBuffers,
        LogItem::Buf(_) | LogItem::Icreate(_) => Turn::Buffers,
        _ => Turn::Others,
    }
}

impl Pass<'_, '_> {
    fn read<'t>(&self, transaction: &Transaction, regions: &[&'t [u8]]) -> Result<LogItem<'t>> {
        LogItem::read(regions, transaction.order).map_err(|fault| self.ring.corrupt(transaction.lsn.block(), fault))
    }

    /// The first pass: cancels, and quotas that are switched off.
    fn gather(&mut self, transaction: &Transaction) -> Result<()> {
        for (ty, regions) in transaction.items(self.ring)? {
            if !matches!(ty, ItemType::Buf | ItemType::Quotaoff) {
                continue;
            }
            match self.read(transaction, &regions)? {
                LogItem::Buf(buf) if buf.format.is_cancel() => self.cancels.note(&buf.format),
                LogItem::Quotaoff(item) => self.quotas.switch_off(&item, transaction.order),
                _ => {}
            }
        }
        Ok(())
    }

    /// The second pass: all else.
    fn apply(&mut self, disk: &mut Disk, transaction: &Transaction) -> Result<()> {
        if disk.lsn != transaction.lsn {
            self.stamp(disk)?;
            disk.lsn = transaction.lsn;
        }
        self.replayed.transactions += 1;
        let mut items = Vec::new();
        for (ty, regions) in transaction.items(self.ring)? {
            *self.replayed.items.entry(ty.name()).or_default() += 1;
            items.push((self.read(transaction, &regions)?, regions));
        }
        items.sort_by_key(|(item, _)| turn(item));
        for (item, regions) in &items {
            self.apply_item(disk, transaction, item, regions)?;
        }
        Ok(())
    }

    fn apply_item(
        &mut self,
        disk: &mut Disk,
        transaction: &Transaction,
        item: &LogItem<'_>,
        regions: &[&[u8]],
    ) -> Result<()> {
        let lsn = transaction.lsn;
        match item {
            LogItem::Buf(buf) if buf.format.is_cancel() => self.cancels.pass(&buf.format),
            LogItem::Buf(buf) => {
                let BufFormat {
                    daddr, len_bytes, ty, ..
                } = buf.format;
                let is_skipped = self.cancels.covers(daddr, len_bytes) || self.quotas.skips(&buf.format);
                if !is_skipped && buffers::replay(disk, buf, lsn)? {
                    self.unstamped
                        .insert((daddr, len_bytes), ty.unwrap_or(BufType::Unknown));
                }
            }
            LogItem::Inode(inode) => {
                if inode
                    .core
                    .as_ref()
                    .is_some_and(|core| core.to_disk().file_type() == mode::DIR)
                {
                    self.parts.note_directory(inode.format.ino);
                }
                if !self.cancels.covers(inode.format.daddr, inode.format.len_bytes) {
                    inodes::replay(disk, inode, lsn)?;
                    let owners = inode_fields::DOWNER | inode_fields::AOWNER;
                    if inode.format.fields & owners != 0 && disk.geometry.is_v5() {
                        inodes::change_owner(disk, inode, lsn)?;
                    }
                }
            }
            LogItem::Dquot { format, dquot } => {
                self.quotas.replay(disk, format, dquot, transaction.order, lsn)?;
            }
            LogItem::Icreate(create) => inodes::create(disk, create, &self.cancels)?,
            LogItem::Quotaoff(_) => {}
            LogItem::Intent(intent) => match intent.ty() {
                ty @ (ItemType::EfiRt | ItemType::RuiRt | ItemType::CuiRt) => {
                    return Err(Error::Unsupported(format!(
                        "log item {} of a realtime device",
                        ty.name()
                    )));
                }
                _ => self.intents.promise(intent, regions, transaction.order),
            },
            LogItem::Done { ty, id } => self.intents.done(*ty, *id),
            LogItem::Unused(ty) => return Err(Error::Unsupported(format!("log item {}", ty.name()))),
        }
        Ok(())
    }

    /// Stamps what the transactions of one record changed.
    fn stamp(&mut self, disk: &mut Disk) -> Result<()> {
        let lsn = disk.lsn;
        for ((daddr, len_bytes), ty) in std::mem::take(&mut self.unstamped) {
            if buffers::may_be_part(disk, len_bytes, ty) {
                self.parts.note(daddr, len_bytes, lsn);
                continue;
            }
            buffers::stamp(disk, daddr, len_bytes, ty, lsn)?;
        }
        Ok(())
    }
}
