//! Pieces of files that one thread reads, compresses and checksums.

use btrfs_format::features::inode_flags;
use btrfs_format::items::compression;
use cowshed_source::{Content, Opened};

use super::extents::InlineData;
use super::options::FilePolicy;
use super::plan::Plan;
use crate::{MkfsError, Settings};

/// The longest piece that is compressed by itself: the format's limit.
const PACKED_BYTES_MAX: u64 = 128 << 10;
/// Bytes of contents that one thread works on at a time, and files.
const JOB_BYTES_MAX: u64 = 1 << 20;
const JOB_PARTS_MAX: usize = 64;
/// What of a small file goes into its item, as the kernel does by default.
const INLINE_BYTES_MAX: u64 = 2048;

/// A stretch of a file, in whole sectors unless it ends the file.
#[derive(Clone, Copy)]
struct Stretch<'j> {
    /// The place of its inode in the list of all.
    file: usize,
    content: &'j Content,
    policy: FilePolicy<'j>,
    start: u64,
    end: u64,
}

impl Stretch<'_> {
    /// All of a file that may go into its item.
    fn may_be_inline(&self, sectorsize_bytes: u64) -> bool {
        let size = self.content.size_bytes();
        let max = match self.policy.packer {
            Some(_) => sectorsize_bytes,
            None => INLINE_BYTES_MAX,
        };
        self.start == 0 && self.end == size && size <= max && self.content.pieces().len() == 1
    }
}

/// Cuts the files into jobs, in order.
pub(super) struct Jobs<'p, 't, 'b> {
    plan: &'p Plan<'t, 'b>,
    sectorsize_bytes: u64,
    subvolume: usize,
    inode: usize,
    /// Of the current file: what is not cut yet, the next last.
    left: Vec<Stretch<'p>>,
}

impl<'p> Jobs<'p, '_, '_> {
    pub fn new<'t, 'b>(plan: &'p Plan<'t, 'b>, settings: &Settings) -> Jobs<'p, 't, 'b> {
        Jobs {
            plan,
            sectorsize_bytes: settings.sectorsize_bytes.into(),
            subvolume: 0,
            inode: 0,
            left: Vec::new(),
        }
    }

    pub fn next(&mut self) -> Option<Job<'p>> {
        let mut stretches: Vec<Stretch<'p>> = Vec::new();
        let mut bytes = 0;
        while bytes < JOB_BYTES_MAX && stretches.len() < JOB_PARTS_MAX {
            let Some(mut stretch) = self.left.pop() else {
                match self.next_file() {
                    true => continue,
                    false => break,
                }
            };
            let max = match stretch.policy.packer {
                Some(_) => PACKED_BYTES_MAX,
                None => JOB_BYTES_MAX - bytes,
            };
            let max = max.max(self.sectorsize_bytes) / self.sectorsize_bytes * self.sectorsize_bytes;
            if stretch.end - stretch.start > max {
                let mut rest = stretch;
                rest.start += max;
                stretch.end = rest.start;
                self.left.push(rest);
            }
            bytes += (stretch.end - stretch.start).next_multiple_of(self.sectorsize_bytes);
            stretches.push(stretch);
        }
        (!stretches.is_empty()).then_some(Job {
            stretches,
            sectorsize_bytes: self.sectorsize_bytes,
            buf: Vec::new(),
        })
    }

    /// Goes to the next file that has data. False where there is none.
    fn next_file(&mut self) -> bool {
        while let Some(subvolume) = self.plan.subvolumes.get(self.subvolume) {
            let Some(inode) = subvolume.inodes.get(self.inode) else {
                (self.subvolume, self.inode) = (self.subvolume + 1, 0);
                continue;
            };
            let file = subvolume.base + self.inode;
            self.inode += 1;
            let Some(content) = self.plan.content(inode.id).filter(|_| self.plan.leader(file) == file) else {
                continue;
            };
            let mut policy = self.plan.options.policy.of(inode.id);
            if policy.inode_flags & (inode_flags::NODATASUM | inode_flags::NODATACOW) != 0 {
                policy.packer = None;
            }
            let ranges = aligned(content, self.sectorsize_bytes);
            self.left.extend(ranges.into_iter().rev().map(|(start, end)| Stretch {
                file,
                content,
                policy,
                start,
                end,
            }));
            if !self.left.is_empty() {
                return true;
            }
        }
        false
    }
}

/// What of a file is no hole, in whole sectors; the last one ends with the file.
fn aligned(content: &Content, sectorsize_bytes: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for piece in content.pieces().iter().filter(|piece| piece.len_bytes > 0) {
        let start = piece.offset_bytes - piece.offset_bytes % sectorsize_bytes;
        let end = (piece.offset_bytes + piece.len_bytes).next_multiple_of(sectorsize_bytes);
        let end = end.min(content.size_bytes());
        match ranges.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => ranges.push((start, end)),
        }
    }
    ranges
}

/// What one thread does at a time.
pub(super) struct Job<'j> {
    stretches: Vec<Stretch<'j>>,
    sectorsize_bytes: u64,
    /// Memory to work in.
    pub buf: Vec<u8>,
}

/// How a part is stored.
pub(super) enum Stored {
    /// As it is.
    Raw,
    /// In whole sectors.
    Packed { algorithm: u8, bytes: Vec<u8> },
    /// In the file's item.
    Inline(Box<InlineData>),
}

/// An extent to be.
pub(super) struct Part<'j> {
    pub content: &'j Content,
    /// The place of its inode in the list of all.
    pub file: usize,
    pub offset_bytes: u64,
    /// Bytes of the file.
    pub len_bytes: u64,
    /// In whole sectors.
    pub ram_bytes: u64,
    /// Bytes on disk.
    pub disk_len: usize,
    /// Where the raw bytes are in the buffer.
    pub at: usize,
    pub stored: Stored,
    pub has_csums: bool,
    /// The feature of the compression.
    pub incompat_bits: u64,
}

impl Part<'_> {
    pub fn disk_bytes(&self) -> u64 {
        self.disk_len as u64
    }
}

/// A job that is done.
pub(super) struct Done<'j> {
    pub buf: Vec<u8>,
    pub parts: Vec<Part<'j>>,
    /// Of the parts that have some, one after the other.
    pub csums: Vec<u8>,
}

impl<'j> Job<'j> {
    /// What the job gives where nothing is compressed, without its bytes.
    pub fn predicted(&self) -> Done<'j> {
        let parts = self.stretches.iter().map(|stretch| {
            let mut part = self.raw_part(stretch, 0);
            if stretch.may_be_inline(self.sectorsize_bytes) {
                part.stored = Stored::Inline(Box::new(InlineData {
                    bytes: Box::default(),
                    len_bytes: part.len_bytes as usize,
                    ram_bytes: part.len_bytes,
                    compression: compression::NONE,
                }));
            }
            part
        });
        Done {
            buf: Vec::new(),
            parts: parts.collect(),
            csums: Vec::new(),
        }
    }

    fn raw_part(&self, stretch: &Stretch<'j>, at: usize) -> Part<'j> {
        let len_bytes = stretch.end - stretch.start;
        let ram_bytes = len_bytes.next_multiple_of(self.sectorsize_bytes);
        Part {
            content: stretch.content,
            file: stretch.file,
            offset_bytes: stretch.start,
            len_bytes,
            ram_bytes,
            disk_len: ram_bytes as usize,
            at,
            stored: Stored::Raw,
            has_csums: stretch.policy.inode_flags & inode_flags::NODATASUM == 0,
            incompat_bits: stretch.policy.packer.map_or(0, |packer| packer.incompat_bits()),
        }
    }

    /// Reads, compresses and checksums.
    pub fn run(mut self, settings: &Settings) -> Result<Done<'j>, MkfsError> {
        let mut parts = Vec::with_capacity(self.stretches.len());
        let mut csums = Vec::new();
        let mut at = 0;
        let mut buf = std::mem::take(&mut self.buf);
        let mut opened: Option<(usize, Opened<'_>)> = None;
        for stretch in &self.stretches {
            let mut part = self.raw_part(stretch, at);
            let end = at + part.disk_len;
            if buf.len() < end {
                buf.resize(end.max(JOB_BYTES_MAX as usize), 0);
            }
            let room = &mut buf[at..end];
            if opened.as_ref().is_none_or(|(file, _)| *file != stretch.file) {
                opened = Some((stretch.file, stretch.content.open()?));
            }
            if let Some((_, opened)) = &opened {
                fill(opened, stretch, room)?;
                if stretch.end == stretch.content.size_bytes() {
                    opened.check_unchanged()?;
                }
            }
            self.store(stretch, &mut part, room);
            match &part.stored {
                Stored::Inline(_) => {}
                Stored::Raw => {
                    checksum(settings, &part, room, &mut csums);
                    at = end;
                }
                Stored::Packed { bytes, .. } => checksum(settings, &part, bytes, &mut csums),
            }
            parts.push(part);
        }
        Ok(Done { buf, parts, csums })
    }

    /// Decides how the data of a part is stored; `sectors` is zero behind the end of the file.
    fn store(&self, stretch: &Stretch<'_>, part: &mut Part<'_>, sectors: &[u8]) {
        let len = part.len_bytes as usize;
        let packer = stretch.policy.packer;
        if stretch.may_be_inline(self.sectorsize_bytes) {
            let packed = packer.and_then(|packer| packer.pack(&sectors[..len], len - 1));
            let packed = packed.filter(|bytes| bytes.len() as u64 <= INLINE_BYTES_MAX);
            let inline = match (packed, packer) {
                (Some(bytes), Some(packer)) => Some((bytes, packer.algorithm())),
                _ if part.len_bytes <= INLINE_BYTES_MAX => Some((sectors[..len].to_vec(), compression::NONE)),
                _ => None,
            };
            if let Some((bytes, compression)) = inline {
                if compression == compression::NONE {
                    part.incompat_bits = 0;
                }
                part.stored = Stored::Inline(Box::new(InlineData {
                    len_bytes: bytes.len(),
                    bytes: bytes.into(),
                    ram_bytes: part.len_bytes,
                    compression,
                }));
                return;
            }
        }
        // A sector less is the least that can be saved.
        let limit = sectors.len().saturating_sub(self.sectorsize_bytes as usize);
        let packed = packer.filter(|_| limit > 0).and_then(|packer| {
            let bytes = packer.pack(sectors, limit)?;
            Some((packer.algorithm(), bytes))
        });
        if let Some((algorithm, mut bytes)) = packed {
            bytes.resize(bytes.len().next_multiple_of(self.sectorsize_bytes as usize), 0);
            part.disk_len = bytes.len();
            part.stored = Stored::Packed { algorithm, bytes };
        }
    }
}

/// Reads a stretch; holes within it, and what is behind the end of the file, become zeros.
fn fill(opened: &Opened<'_>, stretch: &Stretch<'_>, room: &mut [u8]) -> Result<(), MkfsError> {
    let mut done = stretch.start;
    for piece in stretch.content.pieces() {
        let start = piece.offset_bytes.max(done);
        let end = (piece.offset_bytes + piece.len_bytes).min(stretch.end);
        if start >= end {
            continue;
        }
        let within = |offset: u64| (offset - stretch.start) as usize;
        room[within(done)..within(start)].fill(0);
        let part = &mut room[within(start)..within(end)];
        opened.read(piece, start - piece.offset_bytes, part)?;
        done = end;
    }
    room[(done - stretch.start) as usize..].fill(0);
    Ok(())
}

fn checksum(settings: &Settings, part: &Part<'_>, bytes: &[u8], csums: &mut Vec<u8>) {
    if !part.has_csums {
        return;
    }
    let size = settings.csum_type.size_bytes();
    for sector in bytes.chunks(settings.sectorsize_bytes as usize) {
        csums.extend_from_slice(&settings.csum_type.compute(sector)[..size]);
    }
}
