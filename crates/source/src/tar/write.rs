//! Writes archives: POSIX ustar with extended headers of PAX where ustar has no room, sparse files
//! in GNU's form 1.0. The same entries give the same bytes.

use std::io::{self, Write};

use super::acl;
use super::header::{BLOCK_BYTES, HeaderOut};
use crate::tree::Meta;

/// What ustar's octal fields hold.
const ID_MAX: u32 = 0o777_7777;
const SIZE_MAX: u64 = 0o777_7777_7777;

/// What an entry is, beside its name and metadata.
#[derive(Clone, Copy, Debug)]
pub enum TarKind<'k> {
    /// A directory.
    Dir,
    /// A regular file of this size; its contents follow by [`TarWriter::data`]. `data`: its
    /// stretches that are no holes (offset and length), in order.
    File {
        /// Bytes, holes included.
        size_bytes: u64,
        /// Offset and length of each stretch.
        data: &'k [(u64, u64)],
    },
    /// Another name of an earlier entry.
    Link(&'k [u8]),
    /// A symbolic link.
    Symlink(&'k [u8]),
    /// A character device.
    Char(u32, u32),
    /// A block device.
    Block(u32, u32),
    /// A FIFO.
    Fifo,
}

/// An archive in the making.
#[derive(Debug)]
pub struct TarWriter<W: Write> {
    out: W,
    /// Bytes of the current entry's contents that are still to come, and those behind them that
    /// fill its last block.
    left_bytes: u64,
    padding_bytes: usize,
    /// Whether access lists are text in records of their own (`SCHILY.acl`).
    has_acl_records: bool,
}

impl<W: Write> TarWriter<W> {
    /// An archive that goes to `out`. Access lists are in records of their own, as text: tar and
    /// bsdtar read and write them so.
    pub fn new(out: W) -> Self {
        Self {
            has_acl_records: true,
            ..Self::of_layer(out)
        }
    }

    /// The archive of a layer of a container image. Access lists are among the extended attributes:
    /// container tools read no other records of them.
    pub fn of_layer(out: W) -> Self {
        Self {
            out,
            left_bytes: 0,
            padding_bytes: 0,
            has_acl_records: false,
        }
    }

    /// Begins an entry. A directory's path has no slash at its end here.
    ///
    /// # Errors
    /// Those of the output.
    pub fn entry(&mut self, path: &[u8], meta: &Meta, kind: TarKind<'_>) -> io::Result<()> {
        assert!(self.left_bytes == 0, "the contents of the entry before are complete");
        let mut path = path.to_vec();
        let mut records = Vec::new();
        let mut map = Vec::new();
        let (letter, link, stored_bytes, device) = match kind {
            TarKind::Dir => {
                path.push(b'/');
                (b'5', &b""[..], 0, (0, 0))
            }
            TarKind::File { size_bytes, data } => {
                let data_bytes: u64 = data.iter().map(|(_, len)| len).sum();
                if data_bytes < size_bytes {
                    record(&mut records, b"GNU.sparse.major", b"1");
                    record(&mut records, b"GNU.sparse.minor", b"0");
                    record(&mut records, b"GNU.sparse.name", &path);
                    record(&mut records, b"GNU.sparse.realsize", size_bytes.to_string().as_bytes());
                    map = sparse_map(size_bytes, data);
                }
                (b'0', &b""[..], map.len() as u64 + data_bytes, (0, 0))
            }
            TarKind::Link(target) => (b'1', target, 0, (0, 0)),
            TarKind::Symlink(target) => (b'2', target, 0, (0, 0)),
            TarKind::Char(major, minor) => (b'3', &b""[..], 0, (major, minor)),
            TarKind::Block(major, minor) => (b'4', &b""[..], 0, (major, minor)),
            TarKind::Fifo => (b'6', &b""[..], 0, (0, 0)),
        };
        if path.len() > HeaderOut::NAME_BYTES {
            record(&mut records, b"path", &path);
        }
        if link.len() > HeaderOut::NAME_BYTES {
            record(&mut records, b"linkpath", link);
        }
        if stored_bytes > SIZE_MAX {
            record(&mut records, b"size", stored_bytes.to_string().as_bytes());
        }
        for (key, id) in [(&b"uid"[..], meta.uid), (b"gid", meta.gid)] {
            if id > ID_MAX {
                record(&mut records, key, id.to_string().as_bytes());
            }
        }
        let seconds = u64::try_from(meta.mtime.sec).ok().filter(|sec| *sec <= SIZE_MAX);
        if seconds.is_none() || meta.mtime.nsec > 0 {
            record(
                &mut records,
                b"mtime",
                time_text(meta.mtime.sec, meta.mtime.nsec).as_bytes(),
            );
        }
        for xattr in &meta.xattrs {
            let acl_key = match &*xattr.name {
                acl::ACCESS if self.has_acl_records => Some(&b"SCHILY.acl.access"[..]),
                acl::DEFAULT if self.has_acl_records => Some(&b"SCHILY.acl.default"[..]),
                _ => None,
            };
            match acl_key.zip(acl::to_text(&xattr.value)) {
                Some((key, text)) => record(&mut records, key, text.as_bytes()),
                None => record(&mut records, &[b"SCHILY.xattr.", &*xattr.name].concat(), &xattr.value),
            }
        }
        if !records.is_empty() {
            let header = HeaderOut {
                name: b"././@PaxHeader",
                mode: 0o644,
                uid: 0,
                gid: 0,
                size: records.len() as u64,
                mtime: 0,
                kind: b'x',
                link: b"",
                device: (0, 0),
            };
            self.out.write_all(&header.block())?;
            self.out.write_all(&records)?;
            self.out.write_all(&vec![0; padding(records.len() as u64)])?;
        }
        let header = HeaderOut {
            name: &path,
            mode: meta.mode,
            uid: if meta.uid > ID_MAX { 0 } else { meta.uid },
            gid: if meta.gid > ID_MAX { 0 } else { meta.gid },
            size: if stored_bytes > SIZE_MAX { 0 } else { stored_bytes },
            mtime: seconds.unwrap_or(0),
            kind: letter,
            link,
            device,
        };
        self.out.write_all(&header.block())?;
        self.out.write_all(&map)?;
        self.left_bytes = stored_bytes - map.len() as u64;
        self.padding_bytes = padding(stored_bytes);
        self.pad()
    }

    /// The next bytes of a file: those of its stretches, one behind the other.
    ///
    /// # Errors
    /// Those of the output.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.left_bytes.checked_sub(bytes.len() as u64);
        self.left_bytes = left.ok_or_else(|| io::Error::other("a file is longer than it was"))?;
        self.out.write_all(bytes)?;
        self.pad()
    }

    fn pad(&mut self) -> io::Result<()> {
        if self.left_bytes == 0 {
            let zeros = [0; BLOCK_BYTES];
            self.out.write_all(&zeros[..std::mem::take(&mut self.padding_bytes)])?;
        }
        Ok(())
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Bytes behind so many that fill a block.
fn padding(bytes: u64) -> usize {
    (bytes.wrapping_neg() % BLOCK_BYTES as u64) as usize
}

/// A record of an extended header: its own length comes first, and counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    records.extend(len.to_string().as_bytes());
    records.push(b' ');
    records.extend(key);
    records.push(b'=');
    records.extend(value);
    records.push(b'\n');
}

/// Seconds with a fraction, which counts upwards also before 1970.
fn time_text(sec: i64, nsec: u32) -> String {
    if nsec == 0 {
        return sec.to_string();
    }
    let (sign, whole, fraction) = match sec < 0 {
        true => ("-", (sec + 1).unsigned_abs(), 1_000_000_000 - nsec),
        false => ("", sec.unsigned_abs(), nsec),
    };
    let text = format!("{sign}{whole}.{fraction:09}");
    text.trim_end_matches('0').to_owned()
}

/// The map of form 1.0, in whole blocks; it ends with an empty stretch at the end of the file.
fn sparse_map(size_bytes: u64, data: &[(u64, u64)]) -> Vec<u8> {
    let mut all = data.to_vec();
    if all.last().is_none_or(|(start, len)| start + len < size_bytes) {
        all.push((size_bytes, 0));
    }
    let mut text = format!("{}\n", all.len());
    for (start, len) in all {
        text += &format!("{start}\n{len}\n");
    }
    let mut map = text.into_bytes();
    map.resize(map.len() + padding(map.len() as u64), 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        for len in [1, 80, 88, 89, 90, 91, 92, 990, 989, 991] {
            let mut bytes = Vec::new();
            record(&mut bytes, b"path", &vec![b'x'; len]);
            let space = bytes.iter().position(|byte| *byte == b' ').unwrap();
            let stated: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
            assert_eq!(stated, bytes.len(), "{len}");
        }
    }

    #[test]
    fn times_before_1970_have_the_fraction_that_pax_wants() {
        assert_eq!(time_text(-2, 750_000_000), "-1.25");
        assert_eq!(time_text(-1, 750_000_000), "-0.25");
        assert_eq!(time_text(5, 1), "5.000000001");
        assert_eq!(time_text(-7, 0), "-7");
    }
}
