//! A reply under construction: a small head and, for replies that carry bulk, the worker's data
//! buffer. Nothing is allocated.

use std::time::Duration;

use cowshed_vfs::{Attr, Entry, Error, Opened, StatFs};
use zerocopy::{Immutable, IntoBytes};

use crate::proto::flags::OpenOutFlags;
use crate::proto::wire::*;

/// The largest head: that of STATX.
pub const HEAD_BYTES_MAX: usize = size_of::<StatxOut>();

/// A reply. What is sent is the [`OutHeader`], then the head, then the data.
#[derive(Debug)]
pub struct Reply<'b> {
    unique: u64,
    error: i32,
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    data: &'b mut [u8],
    data_bytes: usize,
}

impl<'b> Reply<'b> {
    /// An empty reply (which means success) whose bulk goes to `data`.
    pub fn new(unique: u64, data: &'b mut [u8]) -> Reply<'b> {
        Reply {
            unique,
            error: 0,
            head: [0; HEAD_BYTES_MAX],
            head_bytes: 0,
            data,
            data_bytes: 0,
        }
    }

    /// Adds a structure to the head.
    pub(super) fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        let end = self.head_bytes + size_of::<T>();
        self.head[self.head_bytes..end].copy_from_slice(value.as_bytes());
        self.head_bytes = end;
    }

    /// The data buffer, as much of it as the caller has room for.
    pub(super) fn room(&mut self, bytes_max: u32) -> &mut [u8] {
        let len = self.data.len().min(bytes_max as usize);
        &mut self.data[..len]
    }

    /// So much of the data buffer was filled.
    pub(super) fn filled(&mut self, bytes: usize) {
        assert!(
            bytes <= self.data.len(),
            "a file system said that it filled more than the buffer"
        );
        self.data_bytes = bytes;
    }

    /// Throws away what was there and answers with an error.
    pub(super) fn fail(&mut self, error: Error) {
        self.error = -error.errno();
        self.head_bytes = 0;
        self.data_bytes = 0;
    }

    /// The error of the reply, as a positive `errno`, or 0.
    pub fn errno(&self) -> i32 {
        -self.error
    }

    /// The header that belongs before [`Reply::body`].
    pub fn header(&self) -> OutHeader {
        let len = (size_of::<OutHeader>() + self.head_bytes + self.data_bytes) as u32;
        OutHeader {
            len,
            error: self.error,
            unique: self.unique,
        }
    }

    /// Head and data.
    pub fn body(&self) -> (&[u8], &[u8]) {
        (&self.head[..self.head_bytes], &self.data[..self.data_bytes])
    }
}

pub(super) fn wire_attr(attr: &Attr) -> WireAttr {
    WireAttr {
        ino: attr.ino,
        size: attr.size_bytes,
        blocks: attr.blocks_512,
        atime: attr.atime.secs as u64,
        mtime: attr.mtime.secs as u64,
        ctime: attr.ctime.secs as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Seconds and nanoseconds that the kernel may cache attributes for.
fn valid_for(attr: &Attr, valid: Duration) -> (u64, u32) {
    let valid = if attr.is_estimate { Duration::ZERO } else { valid };
    (valid.as_secs(), valid.subsec_nanos())
}

pub(super) fn attr_out(attr: &Attr, valid: Duration) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = valid_for(attr, valid);
    AttrOut {
        attr_valid,
        attr_valid_nsec,
        dummy: 0,
        attr: wire_attr(attr),
    }
}

pub(super) fn entry_out(entry: &Entry) -> EntryOut {
    let (attr_valid, attr_valid_nsec) = valid_for(&entry.attr, entry.attr_valid);
    EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid: entry.entry_valid.as_secs(),
        attr_valid,
        entry_valid_nsec: entry.entry_valid.subsec_nanos(),
        attr_valid_nsec,
        attr: wire_attr(&entry.attr),
    }
}

/// There is no such name, for so long.
pub(super) fn absent_out(valid: Duration) -> EntryOut {
    EntryOut {
        entry_valid: valid.as_secs(),
        entry_valid_nsec: valid.subsec_nanos(),
        ..Default::default()
    }
}

pub(super) fn open_out(opened: &Opened) -> OpenOut {
    use cowshed_vfs::OpenHints as Hint;
    let mut flags = OpenOutFlags::empty();
    for (hint, flag) in [
        (Hint::DIRECT_IO, OpenOutFlags::DIRECT_IO),
        (Hint::KEEP_CACHE, OpenOutFlags::KEEP_CACHE),
        (Hint::CACHE_DIR, OpenOutFlags::CACHE_DIR),
        (Hint::NO_FLUSH, OpenOutFlags::NOFLUSH),
        (Hint::PARALLEL_DIRECT_WRITES, OpenOutFlags::PARALLEL_DIRECT_WRITES),
        (Hint::NON_SEEKABLE, OpenOutFlags::NONSEEKABLE),
    ] {
        flags.set(flag, opened.hints.contains(hint));
    }
    OpenOut {
        fh: opened.handle.0,
        open_flags: flags.bits(),
        backing_id: 0,
    }
}

/// `STATX_BASIC_STATS | STATX_BTIME`.
const STATX_MASK: u32 = 0x7ff | 0x800;

pub(super) fn statx_out(attr: &Attr, valid: Duration) -> StatxOut {
    let time = |t: cowshed_vfs::Timestamp| SxTime {
        tv_sec: t.secs,
        tv_nsec: t.nanos,
        reserved: 0,
    };
    let stat = Statx {
        mask: STATX_MASK,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode() as u16,
        ino: attr.ino,
        size: attr.size_bytes,
        blocks: attr.blocks_512,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: (attr.rdev >> 8) & 0xfff,
        rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
        ..Default::default()
    };
    let (attr_valid, attr_valid_nsec) = valid_for(attr, valid);
    StatxOut {
        attr_valid,
        attr_valid_nsec,
        flags: 0,
        spare: [0; 2],
        stat,
    }
}

pub(super) fn statfs_out(st: &StatFs) -> StatfsOut {
    StatfsOut {
        blocks: st.blocks,
        bfree: st.blocks_free,
        bavail: st.blocks_available,
        files: st.files,
        ffree: st.files_free,
        bsize: st.bsize,
        namelen: st.name_bytes_max,
        frsize: st.frsize,
        ..Default::default()
    }
}

/// Lays directory entries into a buffer.
#[derive(Debug)]
pub(super) struct DirWriter<'b> {
    room: &'b mut [u8],
    used: usize,
}

impl<'b> DirWriter<'b> {
    pub fn new(room: &'b mut [u8]) -> DirWriter<'b> {
        DirWriter { room, used: 0 }
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// False if the entry does not fit any more. `plus`: None for a plain listing; else the entry,
    /// which may be missing.
    pub fn push(&mut self, dirent: &cowshed_vfs::DirEntry<'_>, plus: Option<Option<&Entry>>) -> bool {
        let before = if plus.is_some() { size_of::<EntryOut>() } else { 0 };
        let fixed = before + size_of::<Dirent>();
        let record = (fixed + dirent.name.len()).next_multiple_of(8);
        let Some(out) = self.room.get_mut(self.used..self.used + record) else {
            return false;
        };
        if let Some(entry) = plus {
            let entry = entry.map_or_else(EntryOut::default, entry_out);
            out[..before].copy_from_slice(entry.as_bytes());
        }
        let namelen = dirent.name.len() as u32;
        let kind = dirent.kind.dirent_type().into();
        let head = Dirent {
            ino: dirent.ino,
            off: dirent.cookie,
            namelen,
            kind,
        };
        out[before..fixed].copy_from_slice(head.as_bytes());
        out[fixed..fixed + dirent.name.len()].copy_from_slice(dirent.name);
        out[fixed + dirent.name.len()..].fill(0);
        self.used += record;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowshed_vfs::{DirEntry, FileKind};

    #[test]
    fn entries_are_padded_and_refused_when_full() {
        let mut room = [0xff; 64];
        let mut w = DirWriter::new(&mut room);
        let entry = |name| DirEntry {
            name,
            ino: 9,
            kind: FileKind::Regular,
            cookie: 3,
        };
        assert!(w.push(&entry(b"abc"), None));
        assert_eq!(w.used(), 32);
        assert!(w.push(&entry(b"12345678"), None));
        assert!(!w.push(&entry(b"x"), None));
        assert_eq!(w.used(), 64);
        assert_eq!(&room[24..32], b"abc\0\0\0\0\0");
    }

    #[test]
    fn a_failed_reply_is_a_bare_header() {
        let mut data = [0; 16];
        let mut reply = Reply::new(5, &mut data);
        reply.put(&LseekOut { offset: 1 });
        reply.filled(3);
        assert_eq!(
            reply.header(),
            OutHeader {
                len: 16 + 8 + 3,
                error: 0,
                unique: 5
            }
        );
        reply.fail(Error::NoSpace);
        assert_eq!(
            reply.header(),
            OutHeader {
                len: 16,
                error: -28,
                unique: 5
            }
        );
    }

    #[test]
    fn device_numbers_split_for_statx() {
        let rdev = cowshed_vfs::rdev(259, 300);
        assert_eq!(
            ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00)),
            (259, 300)
        );
    }
}
