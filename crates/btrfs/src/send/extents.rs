//! The data of a file: what differs between two trees is written, cloned, or cut off.

use std::io::Write;
use std::ops::Range;

use btrfs_format::ObjectId;
use btrfs_format::items::compression as on_disk;
use btrfs_stream::{Command, Version, compression};

use super::Sender;
use super::clones::Owner;
use super::side::Result;
use crate::block::round_up;
use crate::diff::changes::{self, Changed};
use crate::diff::paths::path_in;
use crate::diff::ranges::{self, Map, Piece};
use crate::extent::OnDisk;
use crate::file;
use crate::object::InodeAttr;

/// Data of one write: what Linux sends, too. Version 1 has 16 bits for it.
const WRITE_BYTES: usize = 48 << 10;
/// The same in version 2.
const WRITE_BYTES_V2: usize = 128 << 10;
/// Read at once.
const READ_BYTES: u64 = 1 << 20;
/// FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE.
const PUNCH_HOLE: u32 = 3;

/// What a range can be cloned from.
struct Source {
    owner: Owner,
    path: Vec<u8>,
    /// In the source, in bytes.
    offset: u64,
    /// How much of the range it has, in bytes.
    len: u64,
}

/// The file that is sent.
struct File<'a> {
    ino: ObjectId,
    path: &'a [u8],
    size: u64,
}

impl<W: Write> Sender<'_, W> {
    /// True where something was written.
    pub(super) fn data(
        &mut self,
        changed: &Changed,
        path: &[u8],
        old: Option<&InodeAttr>,
        new: &InodeAttr,
    ) -> Result<bool> {
        let mut size = old.map_or(0, |old| old.size);
        let mut is_written = false;
        if size > new.size {
            self.truncate(path, new.size)?;
            (size, is_written) = (new.size, true);
        }
        let file = File {
            ino: changed.ino,
            path,
            size: new.size,
        };
        if !changed.is_made()
            && let Some(tail) = ranges::uncovered(&self.new.subvol, file.ino, (size, new.size))?
        {
            self.put_data(&file, &tail)?;
            (size, is_written) = (tail.end, true);
        }
        if changed.has_extents {
            let old = self.old.as_ref().filter(|_| !changed.is_made());
            let (old, new) = (old.map(|old| old.subvol.clone()), self.new.subvol.clone());
            let sides = (old.as_deref(), &*new);
            for range in ranges::touched(sides, changed.ino)? {
                let range = range.start..range.end.min(round_up(file.size));
                if range.is_empty() {
                    continue;
                }
                let pieces = ranges::differing(sides, changed.ino, range)?;
                is_written |= !pieces.is_empty();
                self.put(&file, pieces, &mut size)?;
            }
        }
        if size != new.size {
            self.truncate(path, new.size)?;
            is_written = true;
        }
        Ok(is_written)
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        self.out.write(&Command::Truncate { path, size })?;
        Ok(())
    }

    /// Sends pieces. `size`: what the file has at the receiver.
    fn put(&mut self, file: &File<'_>, pieces: Vec<Piece>, size: &mut u64) -> Result<()> {
        let mut pieces = pieces.into_iter().peekable();
        while let Some((mut range, map)) = pieces.next() {
            range.end = range.end.min(file.size);
            if range.is_empty() {
                continue;
            }
            match map {
                Map::Zeros => self.put_zeros(file, &range, size)?,
                Map::Disk(disk) => {
                    if self.put_extent(file, &range, &disk)? {
                        *size = range.end.max(*size);
                        continue;
                    }
                    // What goes on without a gap is read at once.
                    let mut whole = range.clone();
                    self.clones
                        .note(file.ino, range.start, &disk, round_up(range.end) - range.start);
                    while let Some((next, Map::Disk(disk))) = pieces.peek()
                        && next.start == whole.end
                        && whole.end - whole.start < READ_BYTES
                        && self.is_plain(disk)
                    {
                        self.clones.note(file.ino, next.start, disk, next.end - next.start);
                        whole.end = next.end.min(file.size);
                        let _ = pieces.next();
                    }
                    self.put_data(file, &whole)?;
                    *size = whole.end.max(*size);
                }
                Map::Inline(_) => {
                    self.put_data(file, &range)?;
                    *size = range.end.max(*size);
                }
            }
        }
        Ok(())
    }

    /// An extent that can only be written.
    fn is_plain(&self, disk: &OnDisk) -> bool {
        self.clones.find(disk).next().is_none() && !self.is_sent_encoded(disk)
    }

    fn is_sent_encoded(&self, disk: &OnDisk) -> bool {
        self.request.is_compressed && disk.compression != on_disk::NONE && !self.request.is_without_data
    }

    fn put_zeros(&mut self, file: &File<'_>, range: &Range<u64>, size: &mut u64) -> Result<()> {
        let path = file.path;
        let range = range.start..range.end.min(*size);
        if range.is_empty() {
            // What a file grows by is a hole.
            return Ok(());
        }
        if range.end == *size {
            *size = range.start;
            return self.truncate(path, range.start);
        }
        if self.request.is_without_data {
            return self.put_data(file, &range);
        }
        if self.out.version() >= Version::V2 {
            self.out.write(&Command::Fallocate {
                path,
                mode: PUNCH_HOLE,
                offset: range.start,
                len: range.end - range.start,
            })?;
            return Ok(());
        }
        self.put_data(file, &range)
    }

    /// Clones what the receiver has, or sends it as it lies. False where it is to be written.
    fn put_extent(&mut self, file: &File<'_>, range: &Range<u64>, disk: &OnDisk) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let here = OnDisk {
                offset_bytes: disk.offset_bytes + (at - range.start),
                ..*disk
            };
            let Some(source) = self.clone_source(file, at..range.end, &here)? else {
                break;
            };
            let side = match source.owner {
                Owner::Own => &self.new,
                Owner::Source(index) => self.clones.source(index),
            };
            self.out.write(&Command::Clone {
                path: file.path,
                offset: at,
                len: source.len,
                clone_uuid: side.uuid,
                clone_ctransid: side.ctransid,
                clone_path: &source.path,
                clone_offset: source.offset,
            })?;
            at += source.len;
        }
        if at == range.start {
            return match self.is_sent_encoded(disk) {
                true => self.put_encoded(file, range, disk).map(|()| true),
                false => Ok(false),
            };
        }
        if at < range.end {
            self.put_data(file, &(at..range.end))?;
        }
        Ok(true)
    }

    /// A file that has the beginning of a range.
    fn clone_source(&mut self, file: &File<'_>, range: Range<u64>, disk: &OnDisk) -> Result<Option<Source>> {
        let spots: Vec<_> = self.clones.find(disk).cloned().collect();
        for spot in spots {
            let Some((offset, left)) = spot.at(disk.offset_bytes) else {
                continue;
            };
            let subvol = match spot.owner {
                Owner::Own => &self.new.subvol,
                Owner::Source(index) => &self.clones.source(index).subvol,
            };
            let Some(item) = changes::inode(&subvol.tree, spot.ino)? else {
                continue;
            };
            // The end of the source may be in the middle of a sector: only there may the copy end
            // in one.
            let left = left.min(item.size.get().saturating_sub(offset));
            let mut len = left.min(range.end - range.start);
            let is_at_both_ends = offset + len == item.size.get() && range.start + len == file.size;
            if !is_at_both_ends {
                len -= len % subvol.tree.sector_bytes();
            }
            if len == 0 || item.nlink.get() == 0 {
                continue;
            }
            let path = match spot.owner {
                Owner::Own if spot.ino == file.ino => Some(file.path.to_vec()),
                Owner::Own => Some(self.places.new_path(spot.ino)?),
                Owner::Source(_) => path_in(subvol, spot.ino)?,
            };
            if let Some(path) = path {
                let owner = spot.owner;
                return Ok(Some(Source {
                    owner,
                    path,
                    offset,
                    len,
                }));
            }
        }
        Ok(None)
    }

    fn put_encoded(&mut self, file: &File<'_>, range: &Range<u64>, disk: &OnDisk) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.resize(usize::try_from(disk.len_bytes).unwrap_or(0), 0);
        self.reader.read(file.ino, |files, inode| {
            file::read_as_it_lies(files, inode, disk.addr, &mut buffer)
        })?;
        let how = match disk.compression {
            on_disk::ZLIB => compression::ZLIB,
            on_disk::LZO => compression::lzo(self.new.subvol.tree.sector_bytes()),
            on_disk::ZSTD => compression::ZSTD,
            _ => return Err(cowshed_vfs::Error::Corrupt.into()),
        };
        self.clones
            .note(file.ino, range.start, disk, round_up(range.end) - range.start);
        self.out.write(&Command::EncodedWrite {
            path: file.path,
            offset: range.start,
            unencoded_file_len: range.end - range.start,
            unencoded_len: disk.ram_bytes,
            unencoded_offset: disk.offset_bytes,
            compression: Some(how),
            encryption: None,
            data: &buffer,
        })?;
        self.buffer = buffer;
        Ok(())
    }

    /// Writes a range as the file has it.
    fn put_data(&mut self, file: &File<'_>, range: &Range<u64>) -> Result<()> {
        let path = file.path;
        if self.request.is_without_data {
            self.out.write(&Command::UpdateExtent {
                path,
                offset: range.start,
                len: range.end - range.start,
            })?;
            return Ok(());
        }
        let step = match self.out.version() {
            Version::V1 => WRITE_BYTES,
            _ => WRITE_BYTES_V2,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = range.start;
        while at < range.end {
            let wanted = (range.end - at).min(READ_BYTES);
            buffer.clear();
            buffer.resize(usize::try_from(wanted).unwrap_or(0), 0);
            let len = self
                .reader
                .read(file.ino, |files, inode| file::read(files, inode, at, &mut buffer))?;
            if len == 0 {
                return Err(cowshed_vfs::Error::Corrupt.into());
            }
            for data in buffer[..len].chunks(step) {
                let offset = at;
                self.out.write(&Command::Write { path, offset, data })?;
                at += data.len() as u64;
            }
        }
        self.buffer = buffer;
        Ok(())
    }
}
