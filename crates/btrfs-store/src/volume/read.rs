//! Reading by logical address: the choice of a copy, verification, and the repair of bad copies.
//!
//! *Why a repair cannot undo a newer write.* A reader may hold a pointer to a block that was freed,
//! and whose place is being written anew: it sees new bytes on one copy, old ones on the other, and
//! would "repair" the new ones. Therefore a repair takes the lock that all writes share,
//! exclusively, and looks at all copies again: with no write in between, either all copies are new,
//! and none verifies as what the reader looks for, or the difference is a fault indeed. And it does
//! nothing where the reader's chunk is gone: the room of one copy may be another chunk's by now,
//! and be written, while that of the other one is still as it was.

use std::sync::Arc;

use btrfs_format::{BlockExpect, CorruptKind, DevId, LogicalAddr, TreeBlock, TreeId};
use cowshed_device::ReadOp;

use super::BlockPtr;
use super::Volume;
use super::chunk::{PhysAddr, Piece};
use super::member::DeviceFault;
use crate::error::{Error, Result};

/// Copies take turns in windows of this size, so that a sequential reader keeps a device reading
/// ahead.
const TURN_BYTES: u64 = 256 << 10;
/// Below this a read is not worth a second thread.
const PARALLEL_BYTES_MIN: usize = 256 << 10;

/// A sector that no copy has right.
#[derive(Clone, Debug)]
pub struct BadSector {
    /// Logical address of the sector.
    pub addr: LogicalAddr,
    /// Why no copy gives it.
    pub error: Error,
}

/// Runs the jobs, each on a thread of its own where that is wanted, and returns what they return in
/// their order.
pub(super) fn run_all<J: Send, R: Send>(mut jobs: Vec<J>, parallel: bool, run: impl Fn(J) -> R + Sync) -> Vec<R> {
    if !parallel || jobs.len() < 2 {
        return jobs.into_iter().map(run).collect();
    }
    let own = jobs.pop();
    std::thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || run(job))).collect();
        let own = own.map(run);
        let mut results: Vec<R> = others
            .into_iter()
            .map(|thread| thread.join().expect("a device thread does not panic"))
            .collect();
        results.extend(own);
        results
    })
}

/// Checksums of a run of sectors.
#[derive(Clone, Copy)]
struct Sums<'a> {
    volume: &'a Volume,
    bytes: &'a [u8],
}

impl Sums<'_> {
    fn matches(&self, sector_index: usize, sector: &[u8]) -> bool {
        let size = self.volume.geometry.csum_type.size_bytes();
        let expected = &self.bytes[sector_index * size..(sector_index + 1) * size];
        self.volume.geometry.csum_type.compute(sector)[..size] == *expected
    }
}

impl Volume {
    /// Reads and verifies a tree block: tries every copy, repairs bad ones from a good one.
    ///
    /// # Errors
    /// What is wrong with the first copy that could be read; [`Error::BlockUnreadable`] where none
    /// could.
    pub(crate) fn read_block(&self, ptr: &BlockPtr, tree: TreeId) -> Result<TreeBlock> {
        let read = self.read_sound_block(ptr, tree);
        match self.is_salvaging() {
            true => self.salvage_block(ptr, tree, read),
            false => read,
        }
    }

    pub(super) fn read_sound_block(&self, ptr: &BlockPtr, tree: TreeId) -> Result<TreeBlock> {
        let expect = self.expect(ptr, tree);
        let pieces = self.map(ptr.addr, self.geometry.nodesize_bytes.into())?;
        let order = self.copy_order(&pieces[0]);
        let mut found = None;
        let mut failed = false;
        for &copy in &order {
            match self.read_block_copy(&pieces, copy, &expect) {
                Ok(block) if !failed => return Ok(block),
                Ok(block) => {
                    self.repair_block(&pieces, &expect);
                    return Ok(block);
                }
                Err(error) => {
                    tracing::warn!(%tree, copy, %error, "bad copy of a tree block");
                    failed = true;
                    if !matches!(found, Some(Error::Corrupt(_))) {
                        found = Some(error);
                    }
                }
            }
        }
        Err(match found {
            Some(error @ Error::Corrupt(_)) => error,
            other => Error::BlockUnreadable {
                tree,
                addr: ptr.addr,
                reason: Box::new(other.unwrap_or(Error::MissingDevice {
                    devid: pieces[0].copies[0].dev,
                })),
            },
        })
    }

    /// What a pointer in a tree says of a block.
    pub(super) fn expect(&self, ptr: &BlockPtr, tree: TreeId) -> BlockExpect {
        BlockExpect {
            addr: ptr.addr,
            fsid: self.geometry.metadata_fsid,
            csum_type: self.geometry.csum_type,
            sectorsize_bytes: self.geometry.sectorsize_bytes,
            level: Some(ptr.level),
            generation: Some(ptr.generation),
            first_key: ptr.first_key,
            tree: Some(tree),
        }
    }

    /// Copies that are there, the best first: healthy devices, then those with the least to do,
    /// then taking turns.
    pub(super) fn copy_order(&self, piece: &Piece) -> Vec<usize> {
        let count = piece.copies.len();
        let turn = (piece.logical.get() / TURN_BYTES) as usize;
        let mut order: Vec<_> = piece
            .copies
            .iter()
            .enumerate()
            .filter_map(|(index, at)| {
                let member = self.member(at.dev).filter(|m| m.device.is_some())?;
                Some((
                    member.is_suspect(),
                    member.reads_running(),
                    (index + turn) % count,
                    index,
                ))
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(.., index)| index).collect()
    }

    /// The bytes of one copy of a block.
    pub(super) fn read_copy(&self, pieces: &[Piece], copy: usize) -> Result<Arc<[u8]>> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, self.geometry.nodesize_bytes as usize).collect();
        let mut rest = Arc::get_mut(&mut bytes).expect("nobody else has the new buffer");
        for piece in pieces {
            let (now, later) = rest.split_at_mut(piece.len_bytes as usize);
            // Pieces in different chunks may have different numbers of copies.
            self.read_phys(piece.copies[copy.min(piece.copies.len() - 1)], now)?;
            rest = later;
        }
        Ok(bytes)
    }

    fn read_block_copy(&self, pieces: &[Piece], copy: usize, expect: &BlockExpect) -> Result<TreeBlock> {
        let bytes = self.read_copy(pieces, copy)?;
        let verified = if self.options.rescue.ignore_meta_csums && self.options.read_only {
            TreeBlock::seal(bytes.to_vec(), expect)
        } else {
            TreeBlock::verify(bytes, expect)
        };
        verified.map_err(|corrupt| {
            let stale = matches!(
                corrupt.kind,
                CorruptKind::Mismatch {
                    field: "generation",
                    ..
                }
            );
            let fault = if stale {
                DeviceFault::Generation
            } else {
                DeviceFault::Corruption
            };
            self.count(pieces[0].copies[copy].dev, fault);
            corrupt.into()
        })
    }

    fn read_phys(&self, at: PhysAddr, buf: &mut [u8]) -> Result<()> {
        let result = self
            .require_member(at.dev)?
            .reading(|device| device.read_at(at.offset, buf));
        if let Err(Error::Device(_)) = &result {
            self.count(at.dev, DeviceFault::Read);
        }
        result
    }

    pub(super) fn count(&self, dev: DevId, fault: DeviceFault) {
        if let Some(member) = self.member(dev) {
            member.count(fault);
        }
    }

    /// Looks at all copies again, with writes held off, and rewrites those that are bad. Never
    /// fails: the reader has its block.
    pub(super) fn repair_block(&self, pieces: &[Piece], expect: &BlockExpect) {
        if self.read_only {
            return;
        }
        let _alone = self.repairs.write();
        if !self.are_mapped(pieces) {
            return;
        }
        let copies = pieces.iter().map(|p| p.copies.len()).min().unwrap_or(0);
        let found: Vec<_> = (0..copies)
            .map(|copy| self.read_block_copy(pieces, copy, expect))
            .collect();
        let Some(good) = found.iter().find_map(|r| r.as_ref().ok()) else {
            return;
        };
        for (copy, _) in found.iter().enumerate().filter(|(_, r)| r.is_err()) {
            let mut rest = good.bytes();
            for piece in pieces {
                let (now, later) = rest.split_at(piece.len_bytes as usize);
                self.rewrite(piece, copy, now);
                rest = later;
            }
        }
    }

    /// Do these bytes still lie there?
    fn are_mapped(&self, pieces: &[Piece]) -> bool {
        let is_mapped = |piece: &Piece| match self.map(piece.logical, piece.len_bytes).as_deref() {
            Ok([now]) => now.is_same(piece),
            _ => false,
        };
        pieces.iter().all(is_mapped)
    }

    /// Writes good bytes over a bad copy.
    fn rewrite(&self, piece: &Piece, copy: usize, good: &[u8]) {
        let at = piece.copies[copy];
        let Some(Ok(device)) = self.member(at.dev).map(|m| m.present()) else {
            return;
        };
        match device.write_at(at.offset, good) {
            Ok(()) => {
                tracing::warn!(logical = %piece.logical, device = device.name(), at = at.offset, "repaired a bad copy");
            }
            Err(error) => {
                self.count(at.dev, DeviceFault::Write);
                tracing::warn!(logical = %piece.logical, %error, "a bad copy cannot be repaired");
            }
        }
    }

    /// Reads file data. `csums` are the expected checksums, one per sector, concatenated; sectors
    /// that do not match are taken from another copy and the bad copy is repaired. `None`: no
    /// checksums exist.
    ///
    /// # Errors
    /// The first sector that no copy has right: [`Error::DataChecksum`], or what the devices said.
    pub fn read_data(&self, addr: LogicalAddr, buf: &mut [u8], csums: Option<&[u8]>) -> Result<()> {
        match self.read_data_partly(addr, buf, csums)?.into_iter().next() {
            None => Ok(()),
            Some(bad) => Err(bad.error),
        }
    }

    /// Like [`Volume::read_data`], but sectors that cannot be had do not spoil the others: they are
    /// returned, in order, and their bytes in `buf` mean nothing.
    pub(crate) fn read_data_partly(
        &self,
        addr: LogicalAddr,
        buf: &mut [u8],
        csums: Option<&[u8]>,
    ) -> Result<Vec<BadSector>> {
        let sector_bytes = self.geometry.sectorsize_bytes as usize;
        let csums = csums.filter(|_| !self.options.rescue.ignore_data_csums);
        if let Some(csums) = csums {
            assert!(
                buf.len().is_multiple_of(sector_bytes) && addr.get().is_multiple_of(sector_bytes as u64),
                "reads with checksums are of whole sectors"
            );
            let expected = buf.len() / sector_bytes * self.geometry.csum_type.size_bytes();
            assert_eq!(csums.len(), expected, "one checksum per sector");
        }
        let sums = csums.map(|bytes| Sums { volume: self, bytes });
        let pieces = self.map(addr, buf.len() as u64)?;
        let read = self.read_pieces(&pieces, buf);
        let mut bad = Vec::new();
        let mut rest = buf;
        for (piece, taken_from) in pieces.iter().zip(read) {
            let (now, later) = rest.split_at_mut(piece.len_bytes as usize);
            rest = later;
            let into = piece.logical.get() - addr.get();
            for (index, sector) in now.chunks_mut(sector_bytes).enumerate() {
                let skip = (index * sector_bytes) as u64;
                let sector_index = ((into + skip) / sector_bytes as u64) as usize;
                let sum = sums.map(|s| (s, sector_index));
                if let Some(copy) = taken_from {
                    if sum.is_none_or(|(sums, index)| sums.matches(index, sector)) {
                        continue;
                    }
                    self.count(piece.copies[copy].dev, DeviceFault::Corruption);
                }
                let part = piece.slice(skip, sector.len() as u64);
                if let Err(error) = self.recover_sector(&part, sector, sum, taken_from) {
                    bad.push(BadSector {
                        addr: part.logical,
                        error,
                    });
                }
            }
        }
        Ok(bad)
    }

    /// Reads every piece from the best copy, all at once; tells for each which copy it came from,
    /// `None` if it failed.
    fn read_pieces(&self, pieces: &[Piece], buf: &mut [u8]) -> Vec<Option<usize>> {
        let total_bytes = buf.len();
        let mut from = vec![None; pieces.len()];
        let mut jobs: Vec<(usize, Vec<ReadOp<'_>>)> = Vec::new();
        let mut rest = buf;
        for (piece, from) in pieces.iter().zip(&mut from) {
            let (now, later) = rest.split_at_mut(piece.len_bytes as usize);
            rest = later;
            let Some(&copy) = self.copy_order(piece).first() else {
                continue;
            };
            *from = Some(copy);
            let at = piece.copies[copy];
            let Ok(member) = self.members.binary_search_by_key(&at.dev, |m| m.devid) else {
                continue;
            };
            let op = ReadOp {
                offset_bytes: at.offset,
                buf: now,
            };
            match jobs.iter_mut().find(|(index, _)| *index == member) {
                Some((_, ops)) => ops.push(op),
                None => jobs.push((member, vec![op])),
            }
        }
        let parallel = self.options.parallel_devices && total_bytes >= PARALLEL_BYTES_MIN;
        let results = run_all(jobs, parallel, |(index, mut ops)| {
            let member = &self.members[index];
            let result = member.reading(|device| match &mut ops[..] {
                [op] => device.read_at(op.offset_bytes, op.buf),
                ops => device.read_batch(ops),
            });
            (member.devid, result)
        });
        for (devid, result) in results {
            let Err(error) = result else { continue };
            self.count(devid, DeviceFault::Read);
            tracing::warn!(%devid, %error, "read failed, trying piece by piece");
            for (piece, from) in pieces.iter().zip(&mut from) {
                if from.is_some_and(|copy| piece.copies[copy].dev == devid) {
                    *from = None;
                }
            }
        }
        from
    }

    /// Reads one sector from whichever copy has it right. `tried`: the copy that is known to be
    /// wrong.
    fn recover_sector(
        &self,
        sector: &Piece,
        buf: &mut [u8],
        sum: Option<(Sums<'_>, usize)>,
        tried: Option<usize>,
    ) -> Result<()> {
        let mut wrong = tried.is_some();
        let mut failure = None;
        for copy in self.copy_order(sector) {
            if tried == Some(copy) {
                continue;
            }
            match self.read_phys(sector.copies[copy], buf) {
                Ok(()) if sum.is_none_or(|(sums, index)| sums.matches(index, buf)) => {
                    if let Some((sums, index)) = sum
                        && (wrong || failure.is_some())
                    {
                        self.repair_sector(sector, sums, index);
                    }
                    return Ok(());
                }
                Ok(()) => {
                    self.count(sector.copies[copy].dev, DeviceFault::Corruption);
                    wrong = true;
                }
                Err(error) => failure = Some(error),
            }
        }
        let addr = sector.logical;
        if wrong {
            return Err(Error::DataChecksum { addr });
        }
        Err(failure.unwrap_or(Error::MissingDevice {
            devid: sector.copies[0].dev,
        }))
    }

    /// As [`Volume::repair_block`], for a sector of file data.
    fn repair_sector(&self, sector: &Piece, sums: Sums<'_>, index: usize) {
        if self.read_only {
            return;
        }
        let _alone = self.repairs.write();
        if !self.are_mapped(std::slice::from_ref(sector)) {
            return;
        }
        let found: Vec<Option<Vec<u8>>> = (0..sector.copies.len())
            .map(|copy| {
                let mut bytes = vec![0; sector.len_bytes as usize];
                self.read_phys(sector.copies[copy], &mut bytes).ok()?;
                sums.matches(index, &bytes).then_some(bytes)
            })
            .collect();
        let Some(good) = found.iter().flatten().next() else {
            return;
        };
        for (copy, _) in found.iter().enumerate().filter(|(_, bytes)| bytes.is_none()) {
            self.rewrite(sector, copy, good);
        }
    }

    /// Whether a device lost a write or a barrier since the volume was opened.
    #[cfg(test)]
    pub(crate) fn device_lost_writes(&self, devid: DevId) -> bool {
        self.member(devid)
            .is_some_and(|m| m.lost_writes.load(std::sync::atomic::Ordering::Acquire))
    }
}
