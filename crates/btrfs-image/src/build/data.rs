//! The data of all files, laid down in the order of the inodes.
//!
//! Work goes in rounds. In one round the threads read, compress and checksum a batch of pieces, and
//! write the batch of the round before, which got its addresses in between. So reading, compressing
//! and writing overlap, two batches bound the memory, and addresses depend on the order of the
//! files alone, not on threads.

use std::collections::VecDeque;
use std::sync::Arc;

use btrfs_format::LogicalAddr;
use btrfs_format::items::{STRIPE_LEN_BYTES, compression};
use cowshed_device::{BlockDevice, WriteOp};
use cowshed_source::Content;

use super::extents::{CsumRun, DataMap, Extent, FileData};
use super::job::{self, Done, Job, Part, Stored};
use super::options::Cloner;
use super::plan::Plan;
use crate::plan::{ChunkKind, ChunkPlanner, PlannedChunk};
use crate::{MkfsError, Settings};

/// The longest extent that the kernel makes.
const EXTENT_BYTES_MAX: u64 = 128 << 20;
/// Jobs of a round for each thread.
const JOBS_PER_THREAD: usize = 8;
/// A data chunk, until its end is known.
const CHUNK_BYTES: u64 = 1 << 30;
/// What is done with the contents.
#[derive(Clone, Copy)]
pub(super) enum Lay<'d> {
    /// Only their sizes are looked at.
    Predict,
    /// They are read and compressed.
    Pack,
    /// They are written, too.
    Write(&'d [Arc<dyn BlockDevice>]),
}

/// Lays down the data of all files.
pub(super) fn lay_down(
    plan: &Plan<'_, '_>,
    settings: &Settings,
    chunks: &mut ChunkPlanner,
    how: Lay<'_>,
) -> Result<DataMap, MkfsError> {
    let inodes = plan.subvolumes.iter().map(|subvolume| subvolume.inodes.len()).sum();
    let total_bytes = total_bytes(plan);
    let devices = match how {
        Lay::Write(devices) => devices,
        Lay::Predict | Lay::Pack => &[],
    };
    let mut laying = Laying {
        settings,
        chunks,
        at: None,
        devices,
        map: DataMap {
            content_bytes: total_bytes,
            ..DataMap::default()
        },
    };
    laying.map.files.resize_with(inodes, FileData::default);
    let mut jobs = job::Jobs::new(plan, settings);
    let round = plan.options.workers.threads() * JOBS_PER_THREAD;
    let mut writes: VecDeque<Write<'_>> = VecDeque::new();
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let mut done_bytes = 0;
    let cloner = plan.options.cloner.filter(|_| devices.len() == 1);
    loop {
        let mut reads: VecDeque<Work<'_>> = VecDeque::new();
        let mut is_last = true;
        for _ in 0..round {
            let Some(mut job) = jobs.next() else { break };
            is_last = false;
            if matches!(how, Lay::Predict) {
                laying.take(job.predicted())?;
            } else {
                job.buf = spare.pop().unwrap_or_default();
                reads.push_back(Work::Read(job));
            }
        }
        let work = in_turns(writes.drain(..).map(Work::Write).collect(), reads);
        if is_last && work.is_empty() {
            break;
        }
        for finished in plan
            .options
            .workers
            .run(work, |work| work.run(settings, devices, cloner))
        {
            match finished? {
                Finished::Read(done) => {
                    done_bytes += done.parts.iter().map(|part| part.len_bytes).sum::<u64>();
                    writes.extend(laying.take(done)?);
                }
                Finished::Written(buf) => spare.push(buf),
            }
        }
        (plan.options.progress)(done_bytes.min(total_bytes), total_bytes);
    }
    laying.finish()
}

/// One of each by turns. Linux lets one thread at a time write to a file: while one does, the
/// others should read.
fn in_turns<T>(mut these: VecDeque<T>, mut those: VecDeque<T>) -> Vec<T> {
    let mut all = Vec::with_capacity(these.len() + those.len());
    while !(these.is_empty() && those.is_empty()) {
        all.extend(these.pop_front());
        all.extend(those.pop_front());
    }
    all
}

enum Work<'w> {
    Read(Job<'w>),
    Write(Write<'w>),
}

enum Finished<'w> {
    Read(Done<'w>),
    Written(Vec<u8>),
}

impl<'w> Work<'w> {
    fn run(
        self,
        settings: &Settings,
        devices: &[Arc<dyn BlockDevice>],
        cloner: Option<&dyn Cloner>,
    ) -> Result<Finished<'w>, MkfsError> {
        match self {
            Self::Read(job) => job.run(settings).map(Finished::Read),
            Self::Write(write) => {
                let buf = write.run(devices, cloner, settings.sectorsize_bytes.into());
                buf.map(Finished::Written)
            }
        }
    }
}

fn total_bytes(plan: &Plan<'_, '_>) -> u64 {
    let inodes = plan.subvolumes.iter().flat_map(|subvolume| {
        let places = subvolume.inodes.iter().zip(subvolume.base..);
        places.filter(|(_, place)| plan.leader(*place) == *place)
    });
    let contents = inodes.filter_map(|(inode, _)| plan.content(inode.id));
    contents
        .flat_map(|content| content.pieces())
        .map(|piece| piece.len_bytes)
        .sum()
}

/// Gives addresses.
struct Laying<'l> {
    settings: &'l Settings,
    chunks: &'l mut ChunkPlanner,
    /// The next free address of the last chunk.
    at: Option<u64>,
    devices: &'l [Arc<dyn BlockDevice>],
    map: DataMap,
}

impl Laying<'_> {
    /// Notes where the parts of a job are. Gives what is to be written, or what has no place.
    fn take<'j>(&mut self, done: Done<'j>) -> Result<Option<Write<'j>>, MkfsError> {
        let mut ops = Vec::new();
        let mut csums = &done.csums[..];
        let mut packed = Vec::new();
        for mut part in done.parts {
            let count = match &part.stored {
                Stored::Inline(_) => {
                    self.note_inline(part);
                    continue;
                }
                _ if part.has_csums => (part.disk_bytes() / u64::from(self.settings.sectorsize_bytes)) as usize,
                _ => 0,
            };
            let addr = self.find(part.disk_bytes())?;
            if count > 0 {
                let bytes = count * self.settings.csum_type.size_bytes();
                let own = &csums[..bytes.min(csums.len())];
                self.map.csums.extend_from_slice(own);
                csums = &csums[own.len()..];
                self.note_csums(addr, count as u64);
            }
            self.note(&part, addr);
            if self.devices.is_empty() {
                continue;
            }
            let from = match std::mem::replace(&mut part.stored, Stored::Raw) {
                Stored::Packed { bytes, .. } => {
                    packed.push(bytes);
                    From::Packed(packed.len() - 1)
                }
                Stored::Raw | Stored::Inline(_) => From::Buf(part.at, part.content, part.offset_bytes),
            };
            self.place(addr, part.disk_len, from, &mut ops);
        }
        let write = Write {
            buf: done.buf,
            packed,
            ops,
        };
        Ok((!self.devices.is_empty() || !write.buf.is_empty()).then_some(write))
    }

    fn note_inline(&mut self, part: Part<'_>) {
        if let Stored::Inline(data) = part.stored {
            self.map.incompat_bits |= part.incompat_bits;
            self.map.files[part.file] = FileData::Inline(data);
        }
    }

    /// Notes an extent. Raw ones that follow on each other in file and volume become one.
    fn note(&mut self, part: &Part<'_>, addr: LogicalAddr) {
        let compression = match part.stored {
            Stored::Packed { algorithm, .. } => {
                self.map.incompat_bits |= part.incompat_bits;
                algorithm
            }
            Stored::Raw | Stored::Inline(_) => compression::NONE,
        };
        let extent = Extent {
            offset_bytes: part.offset_bytes,
            addr,
            disk_bytes: part.disk_bytes(),
            ram_bytes: part.ram_bytes,
            compression,
        };
        let next = self.map.extents.len();
        let data = &mut self.map.files[part.file];
        if let FileData::Extents { count, .. } = data {
            let last = self.map.extents.last_mut().expect("the file has extents");
            let follows = last.addr.0 + last.disk_bytes == addr.0
                && last.offset_bytes + last.ram_bytes == extent.offset_bytes
                && last.compression == compression::NONE
                && compression == compression::NONE
                && last.ram_bytes + extent.ram_bytes <= EXTENT_BYTES_MAX;
            if follows {
                last.disk_bytes += extent.disk_bytes;
                last.ram_bytes += extent.ram_bytes;
                return;
            }
            *count += 1;
        } else {
            *data = FileData::Extents { start: next, count: 1 };
        }
        self.map.extents.push(extent);
    }

    fn note_csums(&mut self, addr: LogicalAddr, sectors: u64) {
        let sectorsize = u64::from(self.settings.sectorsize_bytes);
        if let Some(last) = self.map.csum_runs.last_mut()
            && last.addr.0 + last.sectors * sectorsize == addr.0
        {
            last.sectors += sectors;
            return;
        }
        self.map.csum_runs.push(CsumRun { addr, sectors });
    }

    /// The next place for so many bytes.
    fn find(&mut self, len_bytes: u64) -> Result<LogicalAddr, MkfsError> {
        for _ in 0..2 {
            if let (Some(at), Some(chunk)) = (self.at, self.chunks.chunks.last())
                && let Some(start) = fits(chunk, at, len_bytes)
            {
                self.at = Some(start + len_bytes);
                self.map.space.note(chunk, start, len_bytes);
                return Ok(LogicalAddr(start));
            }
            self.at = Some(self.add_chunk()?);
        }
        Err(self.no_space())
    }

    fn add_chunk(&mut self) -> Result<u64, MkfsError> {
        let profile = self.settings.data_profile;
        let added = self.chunks.add_sized(self.kind(), profile, CHUNK_BYTES);
        match (added, self.chunks.chunks.last()) {
            (Some(_), Some(chunk)) => Ok(chunk.logical.0),
            _ => Err(self.no_space()),
        }
    }

    fn kind(&self) -> ChunkKind {
        match self.settings.features.mixed_bg {
            true => ChunkKind::Mixed,
            false => ChunkKind::Data,
        }
    }

    fn no_space(&self) -> MkfsError {
        MkfsError::NoSpace {
            what: self.kind().name(),
            profile: self.settings.data_profile,
        }
    }

    /// Where the bytes go on the devices: all copies, each in one piece of a stripe element.
    fn place<'j>(&self, addr: LogicalAddr, len: usize, from: From<'j>, ops: &mut Vec<Op<'j>>) {
        let chunk = self.chunks.chunk_of(addr).expect("the address is in a chunk");
        let mut at = 0;
        while at < len {
            let addr = LogicalAddr(addr.0 + at as u64);
            let step = match chunk.profile.is_striped() {
                true => {
                    let left = STRIPE_LEN_BYTES - (addr.0 - chunk.logical.0) % STRIPE_LEN_BYTES;
                    (len - at).min(left as usize)
                }
                false => len - at,
            };
            for copy in chunk.map(addr, step as u64) {
                ops.push(Op {
                    device: copy.device,
                    offset_bytes: copy.offset_bytes,
                    from,
                    start: at,
                    len: step,
                });
            }
            at += step;
        }
    }

    fn finish(self) -> Result<DataMap, MkfsError> {
        if let (Some(at), Some(chunk)) = (self.at, self.chunks.chunks.last()) {
            let used = at - chunk.logical.0;
            self.chunks.shrink_last(used);
        }
        Ok(self.map)
    }
}

/// Where so many bytes have room behind `at`, around the copies of the superblock.
fn fits(chunk: &PlannedChunk, at: u64, len_bytes: u64) -> Option<u64> {
    let mut start = at;
    for excluded in chunk.superblock_ranges() {
        if start < excluded.end && excluded.start < start + len_bytes {
            start = excluded.end;
        }
    }
    (start + len_bytes <= chunk.range().end).then_some(start)
}

#[derive(Clone, Copy)]
enum From<'j> {
    /// From that byte of the buffer; what is there is of a file, from that byte of it.
    Buf(usize, &'j Content, u64),
    Packed(usize),
}

/// A write of one copy.
struct Op<'j> {
    device: usize,
    offset_bytes: u64,
    from: From<'j>,
    /// Within the part.
    start: usize,
    len: usize,
}

/// A job's parts, with their places.
struct Write<'j> {
    buf: Vec<u8>,
    packed: Vec<Vec<u8>>,
    ops: Vec<Op<'j>>,
}

impl Op<'_> {
    /// Shares what whole sectors of the file hold. The rest is to be written.
    fn share(&mut self, cloner: &dyn Cloner, sectorsize_bytes: u64) -> Result<(), MkfsError> {
        let From::Buf(_, content, offset_bytes) = self.from else {
            return Ok(());
        };
        let start = offset_bytes + self.start as u64;
        let end = (start + self.len as u64).min(content.size_bytes());
        let len = end.saturating_sub(start) / sectorsize_bytes * sectorsize_bytes;
        if len > 0 && cloner.share(content, start..start + len, self.offset_bytes)? {
            self.offset_bytes += len;
            self.start += len as usize;
            self.len -= len as usize;
        }
        Ok(())
    }
}

impl Write<'_> {
    /// Gives the buffer back.
    fn run(
        mut self,
        devices: &[Arc<dyn BlockDevice>],
        cloner: Option<&dyn Cloner>,
        sectorsize_bytes: u64,
    ) -> Result<Vec<u8>, MkfsError> {
        if let Some(cloner) = cloner {
            self.ops
                .iter_mut()
                .try_for_each(|op| op.share(cloner, sectorsize_bytes))?;
            self.ops.retain(|op| op.len > 0);
        }
        for (index, device) in devices.iter().enumerate() {
            let own = self.ops.iter().filter(|op| op.device == index);
            let writes: Vec<WriteOp<'_>> = own
                .map(|op| WriteOp {
                    offset_bytes: op.offset_bytes,
                    data: match op.from {
                        From::Buf(at, ..) => &self.buf[at + op.start..][..op.len],
                        From::Packed(nth) => &self.packed[nth][op.start..][..op.len],
                    },
                })
                .collect();
            device.write_batch(&writes)?;
        }
        Ok(self.buf)
    }
}
