//! The entries of an archive, in order.

use super::header::{BLOCK_BYTES, Header, more_sparse};
use super::input::Input;
use super::pax::Records;
use super::sparse;
use crate::content::{Content, Piece};
use crate::error::{Error, Result};
use crate::tree::{Meta, Time, Xattr, perm};

/// Bytes of one extended header, or of a long name.
const EXTENDED_BYTES_MAX: u64 = 8 << 20;
/// Entries of an archive.
const ENTRIES_MAX: usize = 100_000_000;

/// An entry of an archive.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As the archive has it.
    pub path: Vec<u8>,
    pub meta: Meta,
    pub kind: EntryKind,
}

/// What an entry is.
#[derive(Debug)]
pub(crate) enum EntryKind {
    Dir,
    File(Content),
    Symlink(Vec<u8>),
    /// Another name of the path.
    Link(Vec<u8>),
    Char(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// Reads all entries.
pub(crate) fn read_archive(input: Input) -> Result<Vec<Entry>> {
    let mut reader = Reader {
        input,
        global: Records::default(),
        entries: Vec::new(),
    };
    while reader.entry()? {
        if reader.entries.len() > ENTRIES_MAX {
            return Err(reader.input.refuse("more entries than can be"));
        }
    }
    Ok(reader.entries)
}

struct Reader {
    input: Input,
    /// Records for all entries that follow.
    global: Records,
    entries: Vec<Entry>,
}

impl Reader {
    /// Reads one entry with its extended headers. False at the end of the archive.
    fn entry(&mut self) -> Result<bool> {
        let mut records = self.global.clone();
        let (mut long_name, mut long_link) = (None, None);
        let mut has_extension = false;
        loop {
            let mut block = [0; BLOCK_BYTES];
            let is_there = self.input.read(&mut block)?;
            let header = match is_there {
                true => Header::parse(&block).map_err(|what| self.input.refuse(what))?,
                false => None,
            };
            let Some(header) = header else {
                return match (has_extension, is_there || !self.entries.is_empty()) {
                    (true, _) => Err(self.input.refuse("the archive ends behind an extended header")),
                    (false, true) => Ok(false),
                    (false, false) => Err(self.input.refuse("the archive is empty")),
                };
            };
            has_extension = true;
            match header.kind() {
                b'x' | b'X' => {
                    let bytes = self.extension(&header)?;
                    records.parse(&bytes).map_err(|what| self.input.refuse(what))?;
                }
                b'g' => {
                    let bytes = self.extension(&header)?;
                    self.global.parse(&bytes).map_err(|what| self.input.refuse(what))?;
                    records = self.global.clone();
                    has_extension = false;
                }
                b'L' => long_name = Some(without_zeros(self.extension(&header)?)),
                b'K' => long_link = Some(without_zeros(self.extension(&header)?)),
                b'V' => {
                    self.extension(&header)?;
                    has_extension = false;
                }
                _ => {
                    let sparse_name = records.sparse.name.take();
                    let path = sparse_name.or(records.path.take()).or(long_name);
                    let path = path.unwrap_or_else(|| header.name());
                    let link = records.link_path.take().or(long_link);
                    let link = link.unwrap_or_else(|| header.link_name());
                    let entry = self.build(&header, path, link, records)?;
                    self.entries.push(entry);
                    return Ok(true);
                }
            }
        }
    }

    fn build(&mut self, header: &Header<'_>, path: Vec<u8>, link: Vec<u8>, records: Records) -> Result<Entry> {
        let archive = self.input.name().to_owned();
        let refuse = |what: &str| Error::Entry {
            archive: archive.clone(),
            entry: String::from_utf8_lossy(&path).into_owned(),
            what: what.to_owned(),
        };
        let id = |record: Option<i64>, field: Option<i64>| {
            let id = record.or(field).and_then(|id| u32::try_from(id).ok());
            id.filter(|id| *id != u32::MAX)
                .ok_or_else(|| refuse("has no possible owner"))
        };
        let mut xattrs = records.xattrs;
        xattrs.sort_unstable();
        let mtime = Time {
            sec: header.mtime().ok_or_else(|| refuse("has no possible time"))?,
            nsec: 0,
        };
        let mode = header.mode().and_then(|mode| u32::try_from(mode).ok());
        let meta = Meta {
            mode: mode.ok_or_else(|| refuse("has no possible mode"))? & perm::MASK,
            uid: id(records.uid, header.uid())?,
            gid: id(records.gid, header.gid())?,
            atime: Time::default(),
            mtime: records.mtime.unwrap_or(mtime),
            xattrs,
        };
        let size = records.size.or(header.size()).and_then(|size| u64::try_from(size).ok());
        let size = size.ok_or_else(|| refuse("has no possible size"))?;
        let kind = match header.kind() {
            b'0' | 0 | b'7' if path.ends_with(b"/") => EntryKind::Dir,
            b'0' | 0 | b'7' if records.sparse.is_sparse() => {
                let map = match records.sparse.is_in_contents {
                    true => None,
                    false => Some(records.sparse.map),
                };
                let real = records.sparse.size.unwrap_or(-1);
                EntryKind::File(self.sparse_content(size, real, map, &refuse)?)
            }
            b'0' | 0 | b'7' => EntryKind::File(self.content(size, &refuse)?),
            b'S' => {
                let (real, mut map, mut goes_on) = header.sparse();
                while goes_on {
                    let mut block = [0; BLOCK_BYTES];
                    self.input.read(&mut block)?;
                    let (more, again) = more_sparse(&block);
                    // A block without pairs would go on for ever.
                    goes_on = again && !more.is_empty();
                    map.extend(more);
                }
                EntryKind::File(self.sparse_content(size, real.unwrap_or(-1), Some(map), &refuse)?)
            }
            b'1' => {
                // Some programs store the contents again.
                self.skip_contents(size, &refuse)?;
                EntryKind::Link(link)
            }
            b'2' => EntryKind::Symlink(link),
            b'3' | b'4' => {
                let (major, minor) = header.device();
                let number = |number: Option<i64>, bits: u32| {
                    let number = number.and_then(|number| u32::try_from(number).ok());
                    number
                        .filter(|number| number >> bits == 0)
                        .ok_or_else(|| refuse("has no possible device number"))
                };
                let (major, minor) = (number(major, 12)?, number(minor, 20)?);
                match header.kind() {
                    b'3' => EntryKind::Char(major, minor),
                    _ => EntryKind::Block(major, minor),
                }
            }
            b'5' | b'D' => {
                self.skip_contents(size, &refuse)?;
                EntryKind::Dir
            }
            b'6' => EntryKind::Fifo,
            _ => return Err(refuse("is of a type that is not supported")),
        };
        Ok(Entry { path, meta, kind })
    }

    /// The contents of an extended header.
    fn extension(&mut self, header: &Header<'_>) -> Result<Vec<u8>> {
        let size = header.size().and_then(|size| u64::try_from(size).ok());
        let size = size.filter(|size| *size <= EXTENDED_BYTES_MAX);
        let size = size.ok_or_else(|| self.input.refuse("an extended header of an impossible size"))?;
        let mut bytes = vec![0; size.next_multiple_of(BLOCK_BYTES as u64) as usize];
        if !bytes.is_empty() && !self.input.read(&mut bytes)? {
            return Err(self.input.refuse("the archive ends in an extended header"));
        }
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    fn content(&mut self, size: u64, refuse: &dyn Fn(&str) -> Error) -> Result<Content> {
        let at_bytes = self.input.at_bytes;
        let (file, at) = self.input.keep(size)?;
        self.skip_padding(at_bytes, size, refuse)?;
        let piece = Piece {
            offset_bytes: 0,
            len_bytes: size,
            at_bytes: at,
        };
        let pieces = (size > 0).then_some(piece).into_iter().collect();
        Ok(Content::in_file(file, size, pieces))
    }

    /// `map`: `None` where it is at the head of the contents.
    fn sparse_content(
        &mut self,
        stored: u64,
        real: i64,
        map: Option<Vec<(i64, i64)>>,
        refuse: &dyn Fn(&str) -> Error,
    ) -> Result<Content> {
        let start = self.input.at_bytes;
        let real = u64::try_from(real).map_err(|_| refuse("has no possible size"))?;
        let map = match map {
            Some(map) => map,
            None => {
                let mut next = || {
                    let mut block = vec![0; BLOCK_BYTES];
                    let within = self.input.at_bytes - start < stored;
                    match within && self.input.read(&mut block)? {
                        true => Ok(block),
                        false => Err(refuse("has a map of holes that does not end")),
                    }
                };
                sparse::map_in_contents(&mut next)?.ok_or_else(|| refuse("has no possible map of holes"))?
            }
        };
        let left = stored - (self.input.at_bytes - start);
        let map = sparse::check(&map, real, left).ok_or_else(|| refuse("has no possible map of holes"))?;
        let (file, mut at_bytes) = self.input.keep(left)?;
        self.skip_padding(start, stored, refuse)?;
        let mut pieces = Vec::with_capacity(map.len());
        for (offset_bytes, len_bytes) in map {
            pieces.push(Piece {
                offset_bytes,
                len_bytes,
                at_bytes,
            });
            at_bytes += len_bytes;
        }
        Ok(Content::in_file(file, real, pieces))
    }

    fn skip_contents(&mut self, size: u64, refuse: &dyn Fn(&str) -> Error) -> Result<()> {
        let start = self.input.at_bytes;
        self.input.skip(size)?;
        self.skip_padding(start, size, refuse)
    }

    /// Goes to the next block behind contents that began at `start`.
    fn skip_padding(&mut self, start: u64, size: u64, refuse: &dyn Fn(&str) -> Error) -> Result<()> {
        let end = start
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(BLOCK_BYTES as u64));
        let end = end.ok_or_else(|| refuse("has no possible size"))?;
        self.input.skip_padding(end - self.input.at_bytes)
    }
}

fn without_zeros(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    name
}

/// An attribute by its name.
impl Meta {
    /// The value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.xattrs.iter().find(|Xattr { name: own, .. }| **own == *name);
        found.map(|xattr| &*xattr.value)
    }
}
