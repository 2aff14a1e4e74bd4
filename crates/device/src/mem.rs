//! A sparse device in memory, whose contents are copied on write: a snapshot costs one reference
//! per 4 MiB in use.
//!
//! One reader-writer lock guards the map of contents; it is held only while bytes are copied.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::{BlockDevice, Op, Result, check_access};

/// What a write copies at most of a shared chunk: the default size of a btrfs tree block.
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNKS_PER_TABLE: usize = 256;
const TABLE_BYTES: u64 = (CHUNK_BYTES * CHUNKS_PER_TABLE) as u64;

type Chunk = [u8; CHUNK_BYTES];

/// The chunks of one stretch of `TABLE_BYTES`; a missing chunk reads as zeros.
#[derive(Clone)]
struct Table([Option<Arc<Chunk>>; CHUNKS_PER_TABLE]);

impl Default for Table {
    fn default() -> Self {
        Table([const { None }; CHUNKS_PER_TABLE])
    }
}

type Contents = BTreeMap<u64, Arc<Table>>;

/// A device in memory. It starts as zeros and takes memory only for what is written.
pub struct MemDevice {
    name: String,
    size_bytes: u64,
    sector_size_bytes: u32,
    read_only: AtomicBool,
    contents: RwLock<Contents>,
}

impl MemDevice {
    pub fn new(name: impl Into<String>, size_bytes: u64) -> MemDevice {
        MemDevice {
            name: name.into(),
            size_bytes,
            sector_size_bytes: 512,
            read_only: AtomicBool::new(false),
            contents: RwLock::default(),
        }
    }

    /// A device with the given logical sector size.
    pub fn with_sector_size_bytes(mut self, sector_size_bytes: u32) -> MemDevice {
        assert!(
            sector_size_bytes.is_power_of_two() && sector_size_bytes >= 512,
            "not the size of a sector"
        );
        self.sector_size_bytes = sector_size_bytes;
        self
    }

    /// A device that starts with these bytes and is of their size.
    pub fn from_bytes(name: impl Into<String>, bytes: &[u8]) -> MemDevice {
        let device = MemDevice::new(name, bytes.len() as u64);
        device.put(0, bytes);
        device
    }

    /// A copy of another device's contents, size and sector size. Zeros take no memory.
    pub fn copy_of(name: impl Into<String>, source: &dyn BlockDevice) -> Result<MemDevice> {
        let device = MemDevice::new(name, source.size_bytes()).with_sector_size_bytes(source.sector_size_bytes());
        let mut buf = vec![0; 1 << 20];
        let mut offset_bytes = 0;
        while offset_bytes < source.size_bytes() {
            let len_bytes = (source.size_bytes() - offset_bytes).min(buf.len() as u64);
            let part = &mut buf[..len_bytes as usize];
            source.read_at(offset_bytes, part)?;
            for (index, chunk) in part.chunks(CHUNK_BYTES).enumerate() {
                if chunk.iter().any(|&byte| byte != 0) {
                    device.put(offset_bytes + (index * CHUNK_BYTES) as u64, chunk);
                }
            }
            offset_bytes += len_bytes;
        }
        Ok(device)
    }

    /// An independent, writable device with the present contents. Cheap: the memory is shared until
    /// written.
    pub fn snapshot(&self) -> MemDevice {
        MemDevice {
            name: self.name.clone(),
            size_bytes: self.size_bytes,
            sector_size_bytes: self.sector_size_bytes,
            read_only: AtomicBool::new(false),
            contents: RwLock::new(self.contents.read().clone()),
        }
    }

    /// Goes back to the contents of a snapshot, of a device of the same size.
    pub fn restore(&self, snapshot: &MemDevice) {
        assert_eq!(self.size_bytes, snapshot.size_bytes, "a snapshot of another device");
        let contents = snapshot.contents.read().clone();
        *self.contents.write() = contents;
    }

    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Writes the contents to a file, sparse where nothing was written. An existing file is
    /// replaced.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.set_len(self.size_bytes)?;
        let contents = self.contents.read();
        for (&table_index, table) in contents.iter() {
            for (index, chunk) in table.0.iter().enumerate() {
                let Some(chunk) = chunk else { continue };
                let offset_bytes = table_index * TABLE_BYTES + (index * CHUNK_BYTES) as u64;
                let len_bytes = (self.size_bytes - offset_bytes).min(CHUNK_BYTES as u64) as usize;
                file.write_all_at(&chunk[..len_bytes], offset_bytes)?;
            }
        }
        Ok(())
    }

    /// The bytes of memory that the contents take, shared ones included.
    pub fn used_bytes(&self) -> u64 {
        let contents = self.contents.read();
        let chunks: usize = contents.values().map(|table| table.0.iter().flatten().count()).sum();
        (chunks * CHUNK_BYTES) as u64
    }

    /// Overwrites what was ever written of the range with bytes that follow from the seed: what a
    /// discard may leave. What was never written stays zeros, and takes no memory.
    pub fn scramble(&self, offset_bytes: u64, len_bytes: u64, seed: u64) -> Result<()> {
        check_access(self, Op::Discard, offset_bytes, len_bytes)?;
        let mut contents = self.contents.write();
        for piece in pieces(offset_bytes, len_bytes) {
            let Some(table) = contents.get_mut(&piece.table) else {
                continue;
            };
            if table.0[piece.slot].is_none() {
                continue;
            }
            if let Some(chunk) = &mut Arc::make_mut(table).0[piece.slot] {
                let place = piece.table * CHUNKS_PER_TABLE as u64 + piece.slot as u64;
                // An odd multiplier: each place has bytes of its own, and never those of a
                // plausible structure.
                let word = (seed ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let part = &mut Arc::make_mut(chunk)[piece.start..piece.start + piece.len_bytes];
                for (n, bytes) in part.chunks_mut(8).enumerate() {
                    let garbage = word.wrapping_add(n as u64).to_le_bytes();
                    bytes.copy_from_slice(&garbage[..bytes.len()]);
                }
            }
        }
        Ok(())
    }

    fn put(&self, offset_bytes: u64, buf: &[u8]) {
        let mut contents = self.contents.write();
        let mut rest = buf;
        for piece in pieces(offset_bytes, buf.len() as u64) {
            let (now, later) = rest.split_at(piece.len_bytes);
            rest = later;
            let table = Arc::make_mut(contents.entry(piece.table).or_default());
            let slot = &mut table.0[piece.slot];
            if piece.len_bytes == CHUNK_BYTES
                && let Ok(whole) = Chunk::try_from(now)
                && slot.as_mut().is_none_or(|chunk| Arc::get_mut(chunk).is_none())
            {
                *slot = Some(Arc::new(whole)); // nothing of the old chunk stays: no need to copy it
                continue;
            }
            let chunk = Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; CHUNK_BYTES])));
            chunk[piece.start..piece.start + piece.len_bytes].copy_from_slice(now);
        }
    }
}

/// The part of a byte range that lies in one chunk.
struct Piece {
    table: u64,
    slot: usize,
    start: usize,
    len_bytes: usize,
}

fn pieces(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Piece> {
    let end = offset_bytes + len_bytes;
    let mut at = offset_bytes;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = (at % CHUNK_BYTES as u64) as usize;
        let len_bytes = (end - at).min((CHUNK_BYTES - start) as u64) as usize;
        let slot = (at % TABLE_BYTES) as usize / CHUNK_BYTES;
        let piece = Piece {
            table: at / TABLE_BYTES,
            slot,
            start,
            len_bytes,
        };
        at += len_bytes as u64;
        Some(piece)
    })
}

impl fmt::Debug for MemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemDevice")
            .field("name", &self.name)
            .field("size_bytes", &self.size_bytes)
            .finish()
    }
}

impl BlockDevice for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sector_size_bytes(&self) -> u32 {
        self.sector_size_bytes
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        check_access(self, Op::Read, offset_bytes, buf.len() as u64)?;
        let contents = self.contents.read();
        let len_bytes = buf.len() as u64;
        let mut rest = buf;
        for piece in pieces(offset_bytes, len_bytes) {
            let (now, later) = rest.split_at_mut(piece.len_bytes);
            rest = later;
            match contents
                .get(&piece.table)
                .and_then(|table| table.0[piece.slot].as_ref())
            {
                Some(chunk) => now.copy_from_slice(&chunk[piece.start..piece.start + piece.len_bytes]),
                None => now.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        check_access(self, Op::Write, offset_bytes, buf.len() as u64)?;
        self.put(offset_bytes, buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard_granularity_bytes(&self) -> Option<u64> {
        (!self.is_read_only()).then_some(self.sector_size_bytes.into())
    }

    /// A discarded range reads as zeros, and gives its memory back chunk by chunk.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        check_access(self, Op::Discard, offset_bytes, len_bytes)?;
        let mut contents = self.contents.write();
        for piece in pieces(offset_bytes, len_bytes) {
            let Some(table) = contents.get_mut(&piece.table) else {
                continue;
            };
            if table.0[piece.slot].is_none() {
                continue;
            }
            let slot = &mut Arc::make_mut(table).0[piece.slot];
            if piece.len_bytes == CHUNK_BYTES {
                *slot = None;
            } else if let Some(chunk) = slot {
                Arc::make_mut(chunk)[piece.start..piece.start + piece.len_bytes].fill(0);
            }
        }
        Ok(())
    }
}

impl From<MemDevice> for Arc<dyn BlockDevice> {
    fn from(device: MemDevice) -> Self {
        Arc::new(device)
    }
}
