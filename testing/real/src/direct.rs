//! Random operations on one file through two descriptors, one of them with O_DIRECT, and through
//! mappings, against a copy in memory: what fsx does for buffered files and for mappings, it does
//! not do for direct ones; nor does it clone, dedupe and exchange, nor read what is not in memory
//! any more: of a file that is synced and dropped from the page cache, and of one that is mounted
//! anew.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use cowshed_device_sim::Rng;
use cowshed_vfs_ioctl::wire::op;
use rustix::fs::{Advice, FallocateFlags, OFlags, copy_file_range, fadvise, fallocate, fdatasync, fsync};

use crate::raw::{Mapping, remap};

/// What O_DIRECT asks of offsets, lengths and addresses.
const ALIGN_BYTES: usize = 4096;
/// The file never grows beyond this.
const FILE_BYTES_MAX: usize = 1 << 20;
const OPERATION_BYTES_MAX: usize = 128 << 10;
/// Of one kind in what is written.
const PIECE_BYTES_MAX: usize = 16 << 10;
/// So many operations from one mount to the next.
const REMOUNT_EVERY: usize = 400;

/// A buffer of which a part is aligned for O_DIRECT.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; OPERATION_BYTES_MAX + ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES);
        Self { bytes, start }
    }

    fn part(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

struct Exerciser {
    buffered: File,
    direct: File,
    model: Vec<u8>,
    buffer: Aligned,
    rng: Rng,
    done: Done,
}

/// How many calls between two ranges were done, and how often what was read had to come from disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub clones: usize,
    pub dedupes: usize,
    pub exchanges: usize,
    pub cold_reads: usize,
    pub remounts: usize,
}

/// Where a file is exercised.
pub trait Place {
    fn dir(&self) -> &Path;
    /// Nothing of it is open. The directory may be another one afterwards.
    fn remount(&mut self) -> Result<()>;
}

/// The file through the page cache, and around it.
fn open(path: &Path, is_new: bool) -> Result<(File, File)> {
    let mut options = File::options();
    options.read(true).write(true).create(is_new).truncate(is_new);
    let buffered = options.open(path)?;
    let direct = File::options()
        .read(true)
        .write(true)
        .custom_flags(i32::try_from(OFlags::DIRECT.bits())?)
        .open(path)
        .context("O_DIRECT")?;
    Ok((buffered, direct))
}

/// `operations` random ones on a file of this name, which is made; only through O_DIRECT, or mixed
/// with buffered ones.
pub fn exercise(place: &mut dyn Place, name: &str, operations: usize, seed: u64, mixed: bool) -> Result<Done> {
    let (buffered, direct) = open(&place.dir().join(name), true)?;
    let mut exerciser = Exerciser {
        buffered,
        direct,
        model: Vec::new(),
        buffer: Aligned::new(),
        rng: Rng::new(seed),
        done: Done::default(),
    };
    for number in 0..operations {
        let what = || format!("seed {seed}, mixed {mixed}, operation {number}");
        if number % REMOUNT_EVERY == REMOUNT_EVERY - 1 {
            exerciser = exerciser.remounted(place, name).with_context(what)?;
        }
        exerciser.step(mixed).with_context(what)?;
    }
    exerciser.read_buffered(0, exerciser.model.len())?;
    Ok(exerciser.done)
}

impl Exerciser {
    /// Goes on with the file on a new mount.
    fn remounted(self, place: &mut dyn Place, name: &str) -> Result<Exerciser> {
        let Exerciser {
            buffered,
            direct,
            mut done,
            ..
        } = self;
        drop((buffered, direct));
        place.remount()?;
        let (buffered, direct) = open(&place.dir().join(name), false)?;
        done.remounts += 1;
        let mut exerciser = Exerciser {
            buffered,
            direct,
            done,
            ..self
        };
        // All of it, or the next operation is the first to read.
        if exerciser.rng.index(2) == 0 {
            exerciser
                .read_buffered(0, exerciser.model.len())
                .context("after a remount")?;
        }
        Ok(exerciser)
    }

    /// An offset and a length within what the file may become, in units of `align`.
    fn range(&mut self, align: usize) -> (usize, usize) {
        let offset = self.rng.index(FILE_BYTES_MAX / align) * align;
        let most = OPERATION_BYTES_MAX.min(FILE_BYTES_MAX - offset) / align;
        (offset, (1 + self.rng.index(most)) * align)
    }

    fn step(&mut self, mixed: bool) -> Result<()> {
        let operation = self.rng.index(130);
        let align = if mixed && operation.is_multiple_of(2) {
            1
        } else {
            ALIGN_BYTES
        };
        let (offset, len) = self.range(align);
        match operation {
            0..25 => self.write_direct(),
            25..50 => self.read_direct(),
            50..60 if mixed => self.write_buffered(offset, len),
            60..70 if mixed => self.read_buffered(offset, len),
            50..70 => self.write_direct(),
            70..77 => self.truncate(offset),
            77..83 => self.punch(offset, len),
            83..88 => self.zero(offset, len),
            88..92 => self.preallocate(offset, len),
            92..97 => self.copy(offset, len),
            97 => Ok(fsync(&self.direct)?),
            98 => Ok(fdatasync(&self.buffered)?),
            99 => self.read_size(),
            100..107 if mixed => self.write_mapped(offset, len),
            107..112 if mixed => self.read_mapped(offset, len),
            100..107 => self.write_direct(),
            107..112 => self.read_direct(),
            112..117 => self.clone_range(),
            117..120 => self.dedupe(),
            120..124 => self.exchange(),
            _ if mixed => self.read_cold(offset, len),
            _ => self.read_direct(),
        }
    }

    /// Text that repeats, letters by chance, and noise, in pieces: most of it shrinks more or less
    /// when it is compressed, some chunks not at all.
    fn content(&mut self, len: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(len);
        // Of a write all may be noise.
        let kinds = 1 + self.rng.index(4);
        while content.len() < len {
            let piece = (1 + self.rng.index(PIECE_BYTES_MAX)).min(len - content.len());
            let end = content.len() + piece;
            match self.rng.index(kinds) {
                0 => content.resize_with(end, || self.rng.below(256) as u8),
                1 => content.resize_with(end, || b'a' + self.rng.below(256) as u8 % 8),
                _ => {
                    let word = self.rng.next_u64().to_le_bytes();
                    content.extend(word.iter().cycle().take(piece));
                }
            }
        }
        // Every sector differs, so that a misplaced one shows.
        for (n, sector) in content.chunks_mut(512).enumerate() {
            sector[0] = n.to_le_bytes()[0];
        }
        content
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.grow(end);
        self.model[offset..end].copy_from_slice(bytes);
    }

    fn grow(&mut self, end: usize) {
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
    }

    fn write_direct(&mut self) -> Result<()> {
        let (offset, len) = self.range(ALIGN_BYTES);
        let content = self.content(len);
        self.buffer.part(len).copy_from_slice(&content);
        let written = self.direct.write_at(self.buffer.part(len), offset as u64)?;
        if written != len {
            bail!("direct write of {len} at {offset}: only {written}");
        }
        self.put(offset, &content);
        Ok(())
    }

    fn read_direct(&mut self) -> Result<()> {
        let (offset, len) = self.range(ALIGN_BYTES);
        let read = self.direct.read_at(self.buffer.part(len), offset as u64)?;
        let got = self.buffer.part(len)[..read].to_vec();
        self.same("direct", offset, len, &got)
    }

    fn write_buffered(&mut self, offset: usize, len: usize) -> Result<()> {
        let content = self.content(len);
        self.buffered.write_all_at(&content, offset as u64)?;
        self.put(offset, &content);
        Ok(())
    }

    fn read_buffered(&mut self, offset: usize, len: usize) -> Result<()> {
        let mut got = vec![0; len];
        let read = self.buffered.read_at(&mut got, offset as u64)?;
        self.same("buffered", offset, len, &got[..read])
    }

    /// Nothing of the file is left in the page cache, so that it is asked for again; now and then
    /// in one call.
    fn read_cold(&mut self, offset: usize, len: usize) -> Result<()> {
        fsync(&self.buffered)?;
        fadvise(&self.buffered, 0, None, Advice::DontNeed)?;
        self.done.cold_reads += 1;
        match self.rng.index(4) {
            0 => self.read_buffered(0, self.model.len()),
            _ => self.read_buffered(offset, len),
        }
    }

    fn same(&self, how: &str, offset: usize, len: usize, got: &[u8]) -> Result<()> {
        let start = offset.min(self.model.len());
        let wanted = &self.model[start..(offset + len).min(self.model.len()).max(start)];
        if wanted.len() != got.len() {
            bail!(
                "{how} read of {len} at {offset}: {} bytes, not {}",
                got.len(),
                wanted.len()
            );
        }
        match wanted.iter().zip(got).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(n) => bail!(
                "{how} read of {len} at {offset}: byte {} is {:#x}, not {:#x}",
                offset + n,
                got[n],
                wanted[n]
            ),
        }
    }

    fn truncate(&mut self, size: usize) -> Result<()> {
        self.direct.set_len(size as u64)?;
        self.model.resize(size, 0);
        Ok(())
    }

    fn punch(&mut self, offset: usize, len: usize) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.direct, flags, offset as u64, len as u64)?;
        let end = (offset + len).min(self.model.len());
        if offset < end {
            self.model[offset..end].fill(0);
        }
        Ok(())
    }

    fn zero(&mut self, offset: usize, len: usize) -> Result<()> {
        fallocate(&self.direct, FallocateFlags::ZERO_RANGE, offset as u64, len as u64)?;
        self.put(offset, &vec![0; len]);
        Ok(())
    }

    fn preallocate(&mut self, offset: usize, len: usize) -> Result<()> {
        fallocate(&self.direct, FallocateFlags::empty(), offset as u64, len as u64)?;
        self.grow(offset + len);
        Ok(())
    }

    /// From somewhere in the file to `offset`, unless the two overlap, which the call refuses.
    fn copy(&mut self, offset: usize, len: usize) -> Result<()> {
        let source = if offset >= len { offset - len } else { offset + len };
        let len = len.min(self.model.len().saturating_sub(source));
        let (mut from, mut to) = (source as u64, offset as u64);
        let mut done = 0;
        while done < len {
            let now = copy_file_range(&self.buffered, Some(&mut from), &self.direct, Some(&mut to), len - done)?;
            if now == 0 {
                bail!("copy of {len} from {source} to {offset} stops at {done}");
            }
            done += now;
        }
        let bytes = self.model.get(source..source + len).unwrap_or_default().to_vec();
        if !bytes.is_empty() {
            self.put(offset, &bytes);
        }
        Ok(())
    }

    /// The part of a range that the file has, and a mapping of the file; `None` if it has none of
    /// it.
    fn mapped(&self, offset: usize, len: usize) -> Result<Option<(Mapping, usize)>> {
        let len = len.min(self.model.len().saturating_sub(offset));
        if len == 0 {
            return Ok(None);
        }
        Ok(Some((Mapping::new(&self.buffered, self.model.len())?, len)))
    }

    fn write_mapped(&mut self, offset: usize, len: usize) -> Result<()> {
        let Some((mapping, len)) = self.mapped(offset, len)? else {
            return Ok(());
        };
        let content = self.content(len);
        mapping.store(offset, &content);
        // Otherwise the next operation finds it dirty in the page cache.
        if self.rng.index(2) == 0 {
            mapping.sync()?;
        }
        self.put(offset, &content);
        Ok(())
    }

    fn read_mapped(&mut self, offset: usize, len: usize) -> Result<()> {
        let Some((mapping, len)) = self.mapped(offset, len)? else {
            return Ok(());
        };
        let mut got = vec![0; len];
        mapping.load(offset, &mut got);
        self.same("mapped", offset, len, &got)
    }

    /// Two places and a length in whole blocks, of which the first is within the file, and no two
    /// blocks are the same.
    fn pair(&mut self) -> Option<(usize, usize, usize)> {
        let blocks = self.model.len() / ALIGN_BYTES;
        let blocks_max = FILE_BYTES_MAX / ALIGN_BYTES;
        if blocks == 0 {
            return None;
        }
        let (from, to) = (self.rng.index(blocks), self.rng.index(blocks_max));
        let room = (blocks - from).min(blocks_max - to).min(from.abs_diff(to));
        let most = room.min(OPERATION_BYTES_MAX / ALIGN_BYTES);
        let len = if most == 0 {
            return None;
        } else {
            1 + self.rng.index(most)
        };
        Some((from * ALIGN_BYTES, to * ALIGN_BYTES, len * ALIGN_BYTES))
    }

    fn clone_range(&mut self) -> Result<()> {
        let Some((from, to, len)) = self.pair() else {
            return Ok(());
        };
        let done = remap(op::CLONE, (&self.buffered, from), (&self.direct, to), len);
        if done
            .with_context(|| format!("clone of {len} from {from} to {to}"))?
            .is_some()
        {
            self.done.clones += 1;
            let bytes = self.model[from..from + len].to_vec();
            self.put(to, &bytes);
        }
        Ok(())
    }

    fn dedupe(&mut self) -> Result<()> {
        let Some((from, to, len)) = self.pair() else {
            return Ok(());
        };
        if to + len > self.model.len() {
            return Ok(());
        }
        // As good as never the same by chance.
        if self.rng.index(3) > 0 {
            let bytes = self.model[from..from + len].to_vec();
            self.buffered.write_all_at(&bytes, to as u64)?;
            self.put(to, &bytes);
        }
        let same = self.model[from..from + len] == self.model[to..to + len];
        let wanted = if same { (len as u64, 0) } else { (0, 1) };
        let done = remap(op::DEDUPE, (&self.buffered, from), (&self.direct, to), len);
        match done.with_context(|| format!("dedupe of {len} from {from} to {to}"))? {
            Some(found) if found != wanted => bail!("dedupe of {len} from {from} to {to}: {found:?}, not {wanted:?}"),
            done => {
                self.done.dedupes += usize::from(done.is_some() && same);
                Ok(())
            }
        }
    }

    fn exchange(&mut self) -> Result<()> {
        let Some((from, to, len)) = self.pair() else {
            return Ok(());
        };
        if to + len > self.model.len() {
            return Ok(());
        }
        let done = remap(op::EXCHANGE, (&self.buffered, from), (&self.direct, to), len);
        if done
            .with_context(|| format!("exchange of {len} at {from} and {to}"))?
            .is_some()
        {
            self.done.exchanges += 1;
            let [a, b] = [from, to].map(|at| self.model[at..at + len].to_vec());
            self.put(from, &b);
            self.put(to, &a);
        }
        Ok(())
    }

    fn read_size(&self) -> Result<()> {
        let size = self.buffered.metadata()?.len();
        if size != self.model.len() as u64 {
            bail!("the size is {size}, not {}", self.model.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is mounted all the time.
    struct Lasting(tempfile::TempDir);

    impl Place for Lasting {
        fn dir(&self) -> &Path {
            self.0.path()
        }
        fn remount(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// On whatever file system is there, if it has O_DIRECT at all: the exerciser itself is right.
    #[test]
    fn a_sound_file_system_passes() {
        let mut place = Lasting(tempfile::tempdir().unwrap());
        for mixed in [false, true] {
            match exercise(&mut place, "file", 2 * REMOUNT_EVERY, 7, mixed) {
                Ok(done) => assert!(done.remounts == 2 && (done.cold_reads > 0) == mixed, "{done:?}"),
                Err(error) => assert!(format!("{error:#}").contains("os error 22"), "{error:#}"),
            }
        }
    }
}
