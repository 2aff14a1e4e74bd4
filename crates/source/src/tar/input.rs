//! The bytes of an archive: a file that contents can stay in, or a stream whose contents are kept
//! elsewhere.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::blob::Blob;
use crate::error::{Error, Result};
use crate::spool::Spool;

/// What is read of a stream at once.
const BUFFER_BYTES: usize = 256 << 10;
/// A stream that decompresses to more than this, and so many times its own bytes, is a bomb.
const BOMB_BYTES_MIN: u64 = 4 << 30;
const BOMB_RATIO: u64 = 250;
/// The largest window of a zstd stream: 128 MiB, as the zstd program takes without being asked.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

enum Bytes {
    InPlace(Blob),
    Stream {
        stream: Box<dyn Read>,
        spool: Spool,
        bytes_max: u64,
    },
}

/// An archive that is being read.
pub(crate) struct Input {
    name: String,
    bytes: Bytes,
    pub at_bytes: u64,
}

impl Input {
    /// A file of the host: contents stay in it unless it is compressed.
    pub(crate) fn of_blob(blob: Blob, spool_dir: &Path) -> Result<Self> {
        let name = blob.name.clone();
        let mut magic = [0; 6];
        let len = blob.len_bytes.min(magic.len() as u64) as usize;
        let read = blob.file.read_exact_at(&mut magic[..len], blob.start_bytes);
        read.map_err(Error::host(&name))?;
        let bytes_max = BOMB_BYTES_MIN.max(blob.len_bytes.saturating_mul(BOMB_RATIO));
        let bytes = match decompressor(&magic, || Box::new(blob.reader())).map_err(Error::host(&name))? {
            None => Bytes::InPlace(blob),
            Some(stream) => Bytes::Stream {
                stream,
                spool: Spool::new(spool_dir).map_err(Error::host(spool_dir))?,
                bytes_max,
            },
        };
        Ok(Self {
            name,
            bytes,
            at_bytes: 0,
        })
    }

    /// A pipe, compressed or not.
    pub fn of_stream(name: &str, mut stream: Box<dyn Read>, spool_dir: &Path) -> Result<Self> {
        let mut magic = Vec::new();
        let read = stream.by_ref().take(6).read_to_end(&mut magic);
        read.map_err(Error::host(name))?;
        let mut padded = [0; 6];
        padded[..magic.len()].copy_from_slice(&magic);
        let mut whole: Option<Box<dyn Read>> = Some(Box::new(io::Cursor::new(magic).chain(stream)));
        let packed = decompressor(&padded, || whole.take().unwrap_or_else(|| Box::new(io::empty())));
        let stream = match packed.map_err(Error::host(name))? {
            Some(stream) => stream,
            None => Box::new(BufReader::with_capacity(
                BUFFER_BYTES,
                whole.take().unwrap_or_else(|| Box::new(io::empty())),
            )),
        };
        Ok(Self {
            name: name.to_owned(),
            bytes: Bytes::Stream {
                stream,
                spool: Spool::new(spool_dir).map_err(Error::host(spool_dir))?,
                // The length of the pipe is not known.
                bytes_max: u64::MAX,
            },
            at_bytes: 0,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// An error about the place that has been reached.
    pub fn refuse(&self, what: impl Into<String>) -> Error {
        Error::Archive {
            archive: self.name.clone(),
            offset_bytes: self.at_bytes,
            what: what.into(),
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.refuse("the archive ends in the middle of an entry"),
            _ => self.refuse(error.to_string()),
        }
    }

    /// Fills `buf`. False at the very end of the archive.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<bool> {
        let done = match &mut self.bytes {
            Bytes::InPlace(blob) => {
                let left = blob.len_bytes.saturating_sub(self.at_bytes);
                match left {
                    0 => return Ok(false),
                    left if left < buf.len() as u64 => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => blob.file.read_exact_at(buf, blob.start_bytes + self.at_bytes),
                }
            }
            Bytes::Stream { stream, .. } => match read_up_to(stream, buf) {
                Ok(0) => return Ok(false),
                Ok(len) if len < buf.len() => Err(io::ErrorKind::UnexpectedEof.into()),
                done => done.map(drop),
            },
        };
        done.map_err(|error| self.failed(&error))?;
        self.at_bytes += buf.len() as u64;
        self.check_size()?;
        Ok(true)
    }

    /// Goes on behind so many bytes, and gives where they stay.
    pub fn keep(&mut self, len_bytes: u64) -> Result<(Arc<File>, u64)> {
        let kept = match &mut self.bytes {
            Bytes::InPlace(blob) => match blob.len_bytes.saturating_sub(self.at_bytes) {
                left if left < len_bytes => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok((blob.file.clone(), blob.start_bytes + self.at_bytes)),
            },
            Bytes::Stream { bytes_max, .. } if self.at_bytes.saturating_add(len_bytes) > *bytes_max => {
                return Err(self.refuse(BOMB));
            }
            Bytes::Stream { stream, spool, .. } => spool.put(stream, len_bytes).map(|at| (spool.file().clone(), at)),
        };
        let kept = kept.map_err(|error| self.failed(&error))?;
        self.at_bytes += len_bytes;
        Ok(kept)
    }

    /// Goes on behind so many bytes.
    pub fn skip(&mut self, len_bytes: u64) -> Result<()> {
        let skipped = match &mut self.bytes {
            Bytes::InPlace(blob) => match blob.len_bytes.saturating_sub(self.at_bytes) {
                left if left < len_bytes => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            },
            Bytes::Stream { stream, .. } => match io::copy(&mut stream.by_ref().take(len_bytes), &mut io::sink()) {
                Ok(len) if len < len_bytes => Err(io::ErrorKind::UnexpectedEof.into()),
                done => done.map(drop),
            },
        };
        skipped.map_err(|error| self.failed(&error))?;
        self.at_bytes += len_bytes;
        self.check_size()
    }

    /// As [`Input::skip`], of what fills up the last block of contents. Some writers leave it out
    /// at the end of the archive, and readers of layers accept that.
    pub fn skip_padding(&mut self, len_bytes: u64) -> Result<()> {
        let skipped = match &mut self.bytes {
            Bytes::InPlace(blob) => Ok(len_bytes.min(blob.len_bytes.saturating_sub(self.at_bytes))),
            Bytes::Stream { stream, .. } => io::copy(&mut stream.by_ref().take(len_bytes), &mut io::sink()),
        };
        self.at_bytes += skipped.map_err(|error| self.failed(&error))?;
        self.check_size()
    }

    fn check_size(&self) -> Result<()> {
        match &self.bytes {
            Bytes::Stream { bytes_max, .. } if self.at_bytes > *bytes_max => Err(self.refuse(BOMB)),
            _ => Ok(()),
        }
    }
}

const BOMB: &str = "decompresses to more than 250 times its size";

/// What decompresses a stream that begins so; `None`: it is not compressed.
fn decompressor(magic: &[u8; 6], stream: impl FnOnce() -> Box<dyn Read>) -> io::Result<Option<Box<dyn Read>>> {
    let buffered = |stream: Box<dyn Read>| BufReader::with_capacity(BUFFER_BYTES, stream);
    Ok(Some(match magic {
        [0x1f, 0x8b, ..] => {
            let stream = flate2::bufread::MultiGzDecoder::new(buffered(stream()));
            Box::new(BufReader::with_capacity(BUFFER_BYTES, stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut stream = zstd::stream::read::Decoder::with_buffer(buffered(stream()))?;
            stream.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(BufReader::with_capacity(BUFFER_BYTES, stream))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let stream = liblzma::bufread::XzDecoder::new_multi_decoder(buffered(stream()));
            Box::new(BufReader::with_capacity(BUFFER_BYTES, stream))
        }
        _ => return Ok(None),
    }))
}

fn read_up_to(stream: &mut dyn Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match stream.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
