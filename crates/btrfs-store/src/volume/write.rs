//! Writing by logical address: all copies, barriers, superblocks.
//!
//! *Failing devices.* A write is taken when at least one copy of every byte was taken; a copy that
//! was not is counted against its device ([`super::DeviceInfo::faults`]), which is read last from
//! then on. A barrier must make good what it acknowledges: it succeeds when every device flushed,
//! or when every chunk keeps a copy of every byte on devices that never lost a write or a barrier
//! since the volume was opened. (To remember less, such as failures since the last barrier, would
//! let write X be lost on one device and the barrier that covers X on the other.) Once a barrier
//! has failed, bytes may be lost that a later barrier cannot bring back: all later ones fail too.
//!
//! *Superblocks.* The highest generation wins when the volume is opened. A device that did not take
//! a superblock does no harm when the new one is of a newer generation; when only the log changed
//! (same generation), two devices would disagree and the older log might win. That is an error, and
//! the caller commits instead.
//!
//! A write of a superblock that fails may have torn the one before, which alone leads to the log.
//! Where no device has the new one, the one before is put back (docs/design/transactions.md, X8).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use btrfs_format::{DevId, Generation, LogicalAddr, Superblock, U64};
use cowshed_device::{BlockDevice, WriteOp};
use zerocopy::IntoBytes;

use super::Volume;
use super::member::{DeviceFault, Member};
use super::read::run_all;
use super::superblocks;
use crate::error::{Error, Result};

/// Below this a write is not worth a second thread.
const PARALLEL_BYTES_MIN: usize = 128 << 10;

/// The writes for one device, with the number of the piece that each belongs to.
struct Job<'v, 'd> {
    member: &'v Arc<Member>,
    ops: Vec<WriteOp<'d>>,
    pieces: Vec<usize>,
}

/// Which copies of the superblock to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockCopies {
    /// All copies on all devices.
    All,
    /// The first copy of each device: enough for the log of an fsync.
    First,
}

impl Volume {
    fn require_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Writes to all copies, batched over the devices; the ranges must not overlap. Not durable
    /// before [`Volume::flush`].
    ///
    /// # Errors
    /// When some byte was taken by no device. Others may have been written.
    pub fn write(&self, writes: &[(LogicalAddr, &[u8])]) -> Result<()> {
        self.require_writable()?;
        let _no_repair = self.repairs.read();
        let chunks = self.chunks();
        let mut jobs: Vec<Job<'_, '_>> = Vec::new();
        let mut pieces = Vec::with_capacity(writes.len());
        let mut total_bytes = 0;
        for &(addr, data) in writes {
            let mut rest = data;
            let first = pieces.len();
            chunks.append_pieces(addr, data.len() as u64, &mut pieces)?;
            for (index, piece) in pieces.iter().enumerate().skip(first) {
                let (now, later) = rest.split_at(piece.len_bytes as usize);
                rest = later;
                for at in piece.copies.iter() {
                    let member = self.require_member(at.dev)?;
                    if member.device.is_none() {
                        continue;
                    }
                    total_bytes += now.len();
                    let slot = jobs.iter().position(|j| j.member.devid == at.dev).unwrap_or_else(|| {
                        jobs.push(Job {
                            member,
                            ops: Vec::new(),
                            pieces: Vec::new(),
                        });
                        jobs.len() - 1
                    });
                    jobs[slot].ops.push(WriteOp {
                        offset_bytes: at.offset,
                        data: now,
                    });
                    jobs[slot].pieces.push(index);
                }
            }
        }
        let taken: Vec<AtomicUsize> = pieces.iter().map(|_| AtomicUsize::new(0)).collect();
        let parallel = self.options.parallel_devices && total_bytes >= PARALLEL_BYTES_MIN;
        let errors = run_all(jobs, parallel, |job| run_job(&job, &taken));
        let lost = pieces.iter().zip(&taken).find(|(_, n)| n.load(Ordering::Relaxed) == 0);
        match lost {
            None => Ok(()),
            Some((piece, _)) => Err(errors.into_iter().flatten().next().unwrap_or(Error::MissingDevice {
                devid: piece.copies[0].dev,
            })),
        }
    }

    /// The largest unit in which a device of the volume discards; `None` where none does.
    pub fn discard_granularity_bytes(&self) -> Option<u64> {
        let present = self.members.iter().filter_map(|m| m.device.as_ref());
        present.filter_map(|device| device.discard_granularity_bytes()).max()
    }

    /// Tells the devices that a range is not needed any more. Gives the bytes, those of all copies
    /// on devices that discard.
    ///
    /// # Errors
    /// The first one of a device. The others were told.
    pub(crate) fn discard(&self, addr: LogicalAddr, len_bytes: u64) -> Result<u64> {
        self.require_writable()?;
        let _no_repair = self.repairs.read();
        let mut ranges: Vec<(DevId, u64, u64)> = Vec::new();
        for piece in self.map(addr, len_bytes)? {
            ranges.extend(piece.copies.iter().map(|at| (at.dev, at.offset, piece.len_bytes)));
        }
        ranges.sort_unstable();
        let (mut done_bytes, mut failure) = (0, None);
        for run in ranges.chunk_by(|a, b| a.0 == b.0 && a.1 + a.2 == b.1) {
            let (devid, offset_bytes, _) = run[0];
            match self.discard_run(devid, offset_bytes, run.iter().map(|r| r.2).sum()) {
                Ok(bytes) => done_bytes += bytes,
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(done_bytes), Err)
    }

    /// As [`Volume::discard`], of a range of one device.
    pub(crate) fn discard_on(&self, devid: DevId, offset_bytes: u64, len_bytes: u64) -> Result<u64> {
        self.require_writable()?;
        let _no_repair = self.repairs.read();
        self.discard_run(devid, offset_bytes, len_bytes)
    }

    fn discard_run(&self, devid: DevId, offset_bytes: u64, len_bytes: u64) -> Result<u64> {
        let device = self.require_member(devid)?.device.as_ref();
        let Some(device) = device.filter(|device| device.discard_granularity_bytes().is_some()) else {
            return Ok(0);
        };
        device.discard(offset_bytes, len_bytes)?;
        Ok(len_bytes)
    }

    /// Barrier on all devices.
    ///
    /// # Errors
    /// When something written before is not durable; see the module's page. The volume is then lost
    /// for writing.
    pub fn flush(&self) -> Result<()> {
        self.require_writable()?;
        let jobs: Vec<_> = self
            .members
            .iter()
            .filter_map(|m| m.device.as_ref().map(|device| (m, device)))
            .collect();
        let results = run_all(jobs, self.options.parallel_devices, |(member, device)| {
            device.flush().map_err(|error| {
                member.count(DeviceFault::Flush);
                tracing::warn!(devid = %member.devid, %error, "barrier failed");
                (member, Error::from(error))
            })
        });
        let failures: Vec<_> = results.into_iter().filter_map(|r| r.err()).collect();
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::Refused {
                what: "an earlier barrier failed: what was written may be lost".into(),
            });
        }
        let Some((_, first)) = failures.first() else {
            return Ok(());
        };
        let lost = |dev: DevId| {
            self.member(dev)
                .is_none_or(|m| m.device.is_none() || m.lost_writes.load(Ordering::Acquire))
        };
        if !self.chunks().iter().all(|chunk| chunk.survives(lost)) {
            self.failed.store(true, Ordering::Release);
            return Err(first.clone());
        }
        match failures
            .iter()
            .find(|(m, _)| m.superblock_rewritten.load(Ordering::Acquire))
        {
            // The device may hold the superblock before the last one, of the same generation.
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Writes all copies of the superblock on all devices (each with its own device item), without
    /// a barrier.
    pub fn write_superblocks(&self, superblock: &Superblock) -> Result<()> {
        self.write_superblock_copies(superblock, SuperblockCopies::All)
    }

    /// Writes copies of the superblock on all devices, the first copies before the others, without
    /// a barrier. Checksum, place and device item are filled in here, and features that came into
    /// use.
    ///
    /// # Errors
    /// When no device took it, or when one did not and holds a superblock of this generation.
    /// Devices that did not take it have the one before, if they took that.
    pub fn write_superblock_copies(&self, superblock: &Superblock, which: SuperblockCopies) -> Result<()> {
        self.require_writable()?;
        let mut superblock = *superblock;
        superblock.incompat_flags |= U64::new(self.new_features.load(Ordering::Acquire));
        let superblock = &superblock;
        let generation = Generation::from(superblock.generation);
        let present: Vec<_> = self
            .members
            .iter()
            .filter_map(|m| m.device.as_ref().map(|device| (m, device)))
            .collect();
        let mut failure = None;
        let mut ambiguous = false;
        let mut first_copies = Vec::with_capacity(present.len());
        let mut failed = Vec::new();
        for (member, device) in &present {
            let before = member.superblock_generation();
            match self.write_superblock(superblock, member, device.as_ref(), SUPERBLOCK_OFFSETS[0]) {
                Ok(written) => {
                    first_copies.push((member, device));
                    member.set_superblock(&written);
                    member
                        .superblock_rewritten
                        .store(before == generation, Ordering::Release);
                }
                Err(error) => {
                    failed.push((*member, *device));
                    ambiguous |= before >= generation;
                    failure = Some(error);
                }
            }
        }
        if which == SuperblockCopies::All {
            // Where the first copy failed it may be torn: then the mirrors, as they are, are all
            // that is left.
            for (member, device) in &first_copies {
                let size_bytes = device.size_bytes().min(member.total_bytes());
                for at in superblocks::offsets(size_bytes).skip(1) {
                    // A mirror that fails is counted; the first copy is the one that is believed.
                    let _ = self.write_superblock(superblock, member, device.as_ref(), at);
                }
            }
        }
        match failure {
            Some(error) if first_copies.is_empty() || ambiguous => {
                self.put_back(&failed);
                Err(error)
            }
            _ => {
                *self.superblock.write() = *superblock;
                Ok(())
            }
        }
    }

    /// Gives devices the superblock back that they had before they did not take one. What it leads
    /// to is whole: until a commit is durable, nothing of the one before, or of its log, is written
    /// again. One attempt; where it fails, too, the mirrors are left, of the last commit.
    fn put_back(&self, failed: &[(&Arc<Member>, &Arc<dyn BlockDevice>)]) {
        let last = self.superblock.read().generation;
        for (member, device) in failed {
            // Of a device that missed commits, what its own one leads to may be overwritten.
            let Some(before) = member.superblock().filter(|sb| sb.generation == last) else {
                continue;
            };
            let put = self.put_superblock(before, member, device.as_ref(), SUPERBLOCK_OFFSETS[0]);
            // Barrier: a caller that gets the error may rely on what was synced before.
            let put = put.and_then(|_| {
                device.flush().map_err(|error| {
                    member.count(DeviceFault::Flush);
                    error.into()
                })
            });
            match put {
                Ok(()) => tracing::info!(devid = %member.devid, "the superblock before is there again"),
                Err(error) => tracing::error!(devid = %member.devid, %error, "the first superblock may be torn"),
            }
        }
    }

    /// Returns what was written.
    fn write_superblock(
        &self,
        from: &Superblock,
        member: &Member,
        device: &dyn BlockDevice,
        at: u64,
    ) -> Result<Superblock> {
        let superblock = Superblock {
            dev_item: member.superblock_item(),
            ..*from
        };
        self.put_superblock(superblock, member, device, at)
    }

    /// Writes a superblock of this device's to this place.
    fn put_superblock(
        &self,
        mut superblock: Superblock,
        member: &Member,
        device: &dyn BlockDevice,
        at: u64,
    ) -> Result<Superblock> {
        superblock.bytenr = U64::new(at);
        superblock.seal(self.geometry.csum_type);
        device.write_at(at, superblock.as_bytes()).map_err(|error| {
            member.count(DeviceFault::Write);
            tracing::warn!(devid = %member.devid, at, %error, "superblock not written");
            Error::from(error)
        })?;
        Ok(superblock)
    }
}

/// Writes one device's part. Where the batch fails, each write of it is tried alone, to know which
/// are lost.
fn run_job(job: &Job<'_, '_>, taken: &[AtomicUsize]) -> Option<Error> {
    let device = job.member.device.as_ref()?;
    let batch = device.write_batch(&job.ops);
    let mut first = None;
    for (op, piece) in job.ops.iter().zip(&job.pieces) {
        if batch.is_err()
            && let Err(error) = device.write_at(op.offset_bytes, op.data)
        {
            job.member.count(DeviceFault::Write);
            tracing::warn!(devid = %job.member.devid, %error, "write failed");
            first.get_or_insert_with(|| error.into());
            continue;
        }
        taken[*piece].fetch_add(1, Ordering::Relaxed);
    }
    first
}
