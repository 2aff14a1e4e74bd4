//! Decompression of file extents: zlib, LZO and zstd, as the kernel writes them.
//!
//! No input makes it panic or take more memory than the limits here allow.

use std::fmt;
use std::io::{ErrorKind, Read};

use btrfs_format::items::compression;
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;
use flate2::{Decompress, FlushDecompress, Status};
use zstd::zstd_safe::DCtx;

use super::lzo::{self, LzoError};

/// The most bytes that a compressed extent holds, before and after.
pub const COMPRESSED_EXTENT_BYTES_MAX: usize = 128 << 10;
/// LZO: the file is compressed in pieces of a sector each. This is the sector of volumes that are
/// written.
pub(crate) const LZO_SEGMENT_BYTES: usize = 4096;
/// LZO: a length of four bytes stands before the whole and before each segment, and never crosses a
/// sector's end.
pub(crate) const LZO_LENGTH_BYTES: usize = 4;
/// The most that LZO1X makes of a segment that does not compress: a sixteenth more, and some.
const fn lzo_segment_compressed_bytes_max(segment_bytes: usize) -> usize {
    segment_bytes + segment_bytes / 16 + 64 + 3 + 2
}
/// zstd: the largest window that the kernel's compressor uses for extents is the extent itself.
pub(crate) const ZSTD_WINDOW_LOG_MAX: u32 = 17;

/// Why an extent does not decompress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecompressError {
    /// The file extent item names an unknown algorithm.
    #[error("compression type {found} is unknown")]
    UnknownType {
        /// The number in the item.
        found: u8,
    },
    /// A size beyond what an extent may have.
    #[error("{field} is {found} bytes, limit {limit}")]
    TooLarge {
        /// The size in question.
        field: &'static str,
        /// Bytes.
        found: u64,
        /// Bytes.
        limit: usize,
    },
    /// A zlib or zstd stream that its decoder refuses, or that ends too early.
    #[error("{kind}: {what}")]
    Stream {
        /// The algorithm.
        kind: &'static str,
        /// What the decoder says.
        what: String,
    },
    /// A length in the frame around LZO segments that does not fit what follows it.
    #[error("LZO frame: {what} of {found} bytes at byte {at}, {left} are left")]
    LzoFrame {
        /// The part of the frame.
        what: &'static str,
        /// Its length in bytes, as the frame says.
        found: usize,
        /// Where it begins in the extent, in bytes.
        at: usize,
        /// Bytes of the extent from there on.
        left: usize,
    },
    /// A segment that is no LZO1X stream.
    #[error("LZO segment {index}: {source}")]
    LzoSegment {
        /// Number of the segment, from 0.
        index: usize,
        /// The reason.
        source: LzoError,
    },
}

/// The memory of decompressors, and of what they read: slow to make, so that it is kept.
pub struct Decoder {
    lzo_segment_bytes: usize,
    zstd: Option<DCtx<'static>>,
    zlib: Option<Decompress>,
    /// What is to be decompressed.
    raw: Vec<u8>,
}

impl Default for Decoder {
    /// For sectors of 4 KiB.
    fn default() -> Self {
        Self {
            lzo_segment_bytes: LZO_SEGMENT_BYTES,
            zstd: None,
            zlib: None,
            raw: Vec::new(),
        }
    }
}

impl Decoder {
    /// From here on, extents of volumes with sectors of so many bytes: LZO's frame depends on them.
    pub fn set_sector_bytes(&mut self, sector_bytes: u32) {
        self.lzo_segment_bytes = sector_bytes as usize;
    }

    /// Room for what an extent has on disk; what is in it means nothing. Longer ones than there can
    /// be are cut off.
    pub(crate) fn raw(&mut self, len_bytes: u64) -> &mut [u8] {
        let len = len_bytes.min(COMPRESSED_EXTENT_BYTES_MAX as u64) as usize;
        if self.raw.len() < len {
            self.raw.resize(len, 0);
        }
        &mut self.raw[..len]
    }

    /// As [`Decoder::decompress`], of what [`Decoder::raw`] was filled with.
    pub(crate) fn decompress_raw(
        &mut self,
        compression_type: u8,
        len_bytes: u64,
        out: &mut [u8],
    ) -> Result<(), DecompressError> {
        self.raw(len_bytes);
        let raw = std::mem::take(&mut self.raw);
        let compressed = usize::try_from(len_bytes).ok().and_then(|len| raw.get(..len));
        let done = self.decompress(compression_type, compressed.unwrap_or(&raw), out);
        self.raw = raw;
        done
    }

    /// Decompresses a whole extent, or an inline one, into all of `out`: where the stream holds
    /// less, the rest is zeros (the kernel compresses to the end of the file and fills up so), more
    /// is cut off.
    pub fn decompress(
        &mut self,
        compression_type: u8,
        compressed: &[u8],
        out: &mut [u8],
    ) -> Result<(), DecompressError> {
        let limit = COMPRESSED_EXTENT_BYTES_MAX;
        for (field, found) in [("ram_bytes", out.len()), ("the compressed extent", compressed.len())] {
            if found > limit {
                let found = found as u64;
                return Err(DecompressError::TooLarge { field, found, limit });
            }
        }
        let len = match compression_type {
            compression::ZLIB => self.zlib(compressed, out)?,
            compression::LZO => lzo_frame(compressed, out, self.lzo_segment_bytes)?,
            compression::ZSTD => self.zstd(compressed, out)?,
            found => return Err(DecompressError::UnknownType { found }),
        };
        out[len..].fill(0);
        Ok(())
    }

    /// In one call where the stream ends within `out`; else, and where something is wrong, in the
    /// way that can say so.
    fn zlib(&mut self, compressed: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
        let stream = self.zlib.get_or_insert_with(|| Decompress::new(true));
        stream.reset(true);
        if let Ok(Status::StreamEnd) = stream.decompress(compressed, out, FlushDecompress::Finish) {
            return Ok(usize::try_from(stream.total_out()).map_or(out.len(), |len| len.min(out.len())));
        }
        // A stream that was given up is not used again.
        self.zlib = None;
        read_up_to(flate2::bufread::ZlibDecoder::new(compressed), out, "zlib")
    }

    /// In one call where that is possible; else, and where something is wrong, in the way that can
    /// say so.
    fn zstd(&mut self, compressed: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
        if let Some(frame) = whole_zstd_frame(compressed)
            && let Ok(len) = self.zstd.get_or_insert_with(DCtx::create).decompress(out, frame)
        {
            return Ok(len);
        }
        zstd_stream(compressed, out)
    }
}

/// Decoders that are not in use.
pub(crate) struct Decoders {
    sector_bytes: u32,
    kept: Mutex<Vec<Decoder>>,
}

/// As many decoders are kept as threads may use at the same time on a large machine.
const DECODERS_MAX: usize = 32;

impl Decoders {
    /// For the extents of a volume with sectors of so many bytes.
    pub(crate) fn new(sector_bytes: u32) -> Self {
        Self {
            sector_bytes,
            kept: Mutex::new(LockRank::Decoders, Vec::new()),
        }
    }

    /// Lends any decoder that is free, or a new one.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Decoder) -> R) -> R {
        let kept = self.kept.lock().pop();
        let mut decoder = kept.unwrap_or_default();
        decoder.set_sector_bytes(self.sector_bytes);
        let result = run(&mut decoder);
        let mut kept = self.kept.lock();
        if kept.len() < DECODERS_MAX {
            kept.push(decoder);
        }
        result
    }
}

impl fmt::Debug for Decoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoders({})", self.kept.lock().len())
    }
}

/// The first frame, where its window is its content. (A window of its own has a size that must be
/// looked at first.)
fn whole_zstd_frame(compressed: &[u8]) -> Option<&[u8]> {
    /// Offset of the frame header descriptor (RFC 8878), and its bit for frames whose window is
    /// their content.
    const DESCRIPTOR: usize = 4;
    const SINGLE_SEGMENT: u8 = 1 << 5;
    compressed.get(DESCRIPTOR).filter(|byte| *byte & SINGLE_SEGMENT != 0)?;
    compressed.get(..zstd::zstd_safe::find_frame_compressed_size(compressed).ok()?)
}

/// Reads what a decoder gives, as far as there is room for it.
fn read_up_to(mut reader: impl Read, out: &mut [u8], kind: &'static str) -> Result<usize, DecompressError> {
    let mut len = 0;
    while len < out.len() {
        match reader.read(&mut out[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                let what = error.to_string();
                return Err(DecompressError::Stream { kind, what });
            }
        }
    }
    Ok(len)
}

fn zstd_stream(compressed: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
    let stream = |what: std::io::Error| DecompressError::Stream {
        kind: "zstd",
        what: what.to_string(),
    };
    // One frame: what follows it up to the end of the last sector is padding.
    let mut decoder = zstd::stream::read::Decoder::with_buffer(compressed)
        .map_err(stream)?
        .single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(stream)?;
    read_up_to(decoder, out, "zstd")
}

/// btrfs's frame: the length of the whole, then segments, each with its length before it. A length
/// does not cross the end of a sector: where fewer than four bytes are left in one, they are
/// padding.
fn lzo_frame(compressed: &[u8], out: &mut [u8], segment_bytes: usize) -> Result<usize, DecompressError> {
    let length_at = |at: usize| -> Option<usize> {
        let bytes = compressed.get(at..)?.first_chunk::<LZO_LENGTH_BYTES>()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    let frame = |what, found, at: usize| DecompressError::LzoFrame {
        what,
        found,
        at,
        left: compressed.len().saturating_sub(at),
    };
    let total = length_at(0).ok_or_else(|| frame("length", LZO_LENGTH_BYTES, 0))?;
    if total > compressed.len() || total < LZO_LENGTH_BYTES {
        return Err(frame("the whole", total, 0));
    }
    let mut at = LZO_LENGTH_BYTES;
    let mut index = 0;
    let mut len = 0;
    while at < total && len < out.len() {
        let segment_len = length_at(at).ok_or_else(|| frame("length", LZO_LENGTH_BYTES, at))?;
        at += LZO_LENGTH_BYTES;
        if segment_len > lzo_segment_compressed_bytes_max(segment_bytes) || segment_len > total.saturating_sub(at) {
            return Err(frame("segment", segment_len, at));
        }
        let segment = compressed.get(at..at + segment_len).unwrap_or_default();
        let found = lzo_segment(segment, &mut out[len..], segment_bytes);
        let found = found.map_err(|source| DecompressError::LzoSegment { index, source })?;
        at += segment_len;
        // The kernel counts the padding as part of the whole, behind the last segment too.
        let left_in_sector = segment_bytes - at % segment_bytes;
        if left_in_sector < LZO_LENGTH_BYTES {
            at += left_in_sector;
        }
        if at < total && found != segment_bytes {
            return Err(frame("output of a segment that is not the last", found, at));
        }
        len += found;
        index += 1;
    }
    Ok(len.min(out.len()))
}

/// Decodes a segment to the start of `out`, and returns how long it is, also where that is more
/// than there is room for.
fn lzo_segment(segment: &[u8], out: &mut [u8], segment_bytes: usize) -> Result<usize, LzoError> {
    if out.len() >= segment_bytes {
        return lzo::decode(segment, out, segment_bytes);
    }
    let mut all = vec![0; segment_bytes];
    let found = lzo::decode(segment, &mut all, segment_bytes)?;
    let wanted = found.min(out.len());
    out[..wanted].copy_from_slice(&all[..wanted]);
    Ok(found)
}

/// Decompresses one extent with a fresh [`Decoder`].
///
/// # Errors
/// Where the bytes are not what the compression makes, or decompress to more than `len`.
pub fn decompress(compression_type: u8, compressed: &[u8], len: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = vec![0xee; len];
    Decoder::default().decompress(compression_type, compressed, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use cowshed_vfs::{Algorithm, Compression};

    use super::super::compress::Encoders;
    use super::*;

    const TYPES: [u8; 3] = [compression::ZLIB, compression::LZO, compression::ZSTD];

    #[test]
    fn limits_are_kept() {
        for ty in TYPES {
            let error = decompress(ty, &[0; 16], (128 << 10) + 1).unwrap_err();
            assert!(
                matches!(error, DecompressError::TooLarge { field: "ram_bytes", .. }),
                "{error}"
            );
            let error = decompress(ty, &vec![0; (128 << 10) + 1], 4096).unwrap_err();
            assert!(matches!(error, DecompressError::TooLarge { .. }), "{error}");
        }
        assert_eq!(decompress(9, &[], 1), Err(DecompressError::UnknownType { found: 9 }));
    }

    #[test]
    fn noise_is_an_error_or_bytes_never_a_panic() {
        let mut x = 88_172_645_463_325_252_u64;
        for round in 0..3000_usize {
            let mut noise: Vec<u8> = (0..round % 300)
                .map(|_| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    (x >> 56) as u8
                })
                .collect();
            if let Some(head) = noise.get_mut(..4) {
                head.copy_from_slice(&((round % 300) as u32).to_le_bytes());
            }
            for ty in TYPES {
                if let Ok(bytes) = decompress(ty, &noise, 8192) {
                    assert_eq!(bytes.len(), 8192);
                }
            }
        }
    }

    /// A frame with a window of its own, and without the length of its content.
    fn zstd_with_window(data: &[u8], log: u32) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(log).unwrap();
        std::io::Write::write_all(&mut encoder, data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn large_windows_are_refused() {
        let packed = zstd_with_window(&[7; 50_000], ZSTD_WINDOW_LOG_MAX + 1);
        let refused = decompress(compression::ZSTD, &packed, 50_000).unwrap_err();
        assert!(
            matches!(refused, DecompressError::Stream { kind: "zstd", .. }),
            "{refused}"
        );
    }

    #[test]
    fn what_a_decoder_saw_before_does_not_matter() {
        let text: Vec<u8> = (0..3000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .take(20_000)
            .collect();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &text).unwrap();
        let lzo = Compression::new(Algorithm::Lzo, 0);
        let streams = [
            (compression::ZLIB, encoder.finish().unwrap()),
            (compression::ZSTD, zstd::bulk::compress(&text, 3).unwrap()),
            (compression::ZSTD, zstd_with_window(&text, ZSTD_WINDOW_LOG_MAX)),
            (
                compression::LZO,
                Encoders::default().compress(lzo, &text, 20_000).unwrap(),
            ),
        ];
        let mut decoder = Decoder::default();
        let twice = streams.clone().into_iter().chain(streams);
        for (ty, mut packed) in twice {
            packed.resize(packed.len().next_multiple_of(4096), 0);
            // Whole, cut off, filled up.
            for len in [20_000, 10_000, 24_576, 1] {
                let mut expected = text.clone();
                expected.resize(len, 0);
                let mut out = vec![0xee; len];
                decoder.decompress(ty, &packed, &mut out).unwrap();
                assert!(out == expected, "{ty}: {len}");
            }
            packed[60] ^= 0xff;
            packed.truncate(300);
            let mut out = vec![0; 20_000];
            let done = decoder.decompress(ty, &packed, &mut out);
            assert!(done.is_err(), "{ty}: a damaged stream");
        }
    }

    /// As the kernel writes a file of 4097 bytes that end three, two, one bytes before a sector
    /// does: such an extent could not be read.
    #[test]
    fn padding_behind_the_last_lzo_segment_is_part_of_the_frame() {
        use super::super::lzo_encode::{Table, encode};
        let mut table = Table::default();
        let (mut found, mut noise) = ([false; LZO_LENGTH_BYTES], 1_u32);
        for literals in 3900..4100_usize {
            let mut first: Vec<u8> = (0..literals.min(4096))
                .map(|_| {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (noise >> 24) as u8
                })
                .collect();
            first.resize(4096, 0);
            let mut frame = vec![0; LZO_LENGTH_BYTES];
            for segment in [&first[..], b"x"] {
                let mut packed = Vec::new();
                encode(&mut table, segment, &mut packed);
                frame.extend((packed.len() as u32).to_le_bytes());
                frame.extend(packed);
                let left = 4096 - frame.len() % 4096;
                if left < LZO_LENGTH_BYTES {
                    found[left] |= segment.len() == 1;
                    frame.resize(frame.len() + left, 0);
                }
            }
            let total = frame.len() as u32;
            frame[..LZO_LENGTH_BYTES].copy_from_slice(&total.to_le_bytes());
            frame.resize(frame.len().next_multiple_of(4096), 0);
            let mut want = [&first[..], b"x"].concat();
            want.resize(8192, 0);
            assert!(
                decompress(compression::LZO, &frame, 8192).as_ref() == Ok(&want),
                "{literals}"
            );
        }
        assert_eq!(found[1..], [true; 3]);
    }

    #[test]
    fn bombs_stop_at_ram_bytes() {
        let zeros = vec![0; 16 << 20];
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, &zeros).unwrap();
        let zlib = encoder.finish().unwrap();
        assert_eq!(decompress(compression::ZLIB, &zlib, 4096).unwrap(), [0; 4096]);
        let zstd = zstd::bulk::compress(&zeros[..128 << 10], 3).unwrap();
        assert_eq!(decompress(compression::ZSTD, &zstd, 4096).unwrap(), [0; 4096]);
    }
}
