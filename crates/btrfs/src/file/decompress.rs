//! Decompression of file extents: zlib, LZO and zstd, as the kernel writes them.
//!
//! No input makes it panic or take more memory than the limits here allow.

use std::io::Read;

use btrfs_format::items::compression;

use super::lzo::{self, LzoError};

/// The most bytes that a compressed extent holds, before and after.
pub const COMPRESSED_EXTENT_BYTES_MAX: usize = 128 << 10;
/// LZO: the file is compressed in pieces of a sector each.
pub(super) const LZO_SEGMENT_BYTES: usize = 4096;
/// LZO: a length of four bytes stands before the whole and before each segment, and never crosses a sector's end.
pub(super) const LZO_LENGTH_BYTES: usize = 4;
/// The most that LZO1X makes of a segment that does not compress: a sixteenth more, and some.
const LZO_SEGMENT_COMPRESSED_BYTES_MAX: usize = LZO_SEGMENT_BYTES + LZO_SEGMENT_BYTES / 16 + 64 + 3 + 2;
/// zstd: the largest window that the kernel's compressor uses for extents is the extent itself.
pub(super) const ZSTD_WINDOW_LOG_MAX: u32 = 17;

/// Why an extent does not decompress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecompressError {
    #[error("compression type {found} is unknown")]
    UnknownType { found: u8 },
    #[error("{field} is {found} bytes, limit {limit}")]
    TooLarge {
        field: &'static str,
        found: u64,
        limit: usize,
    },
    #[error("{kind}: {what}")]
    Stream { kind: &'static str, what: String },
    #[error("LZO frame: {what} of {found} bytes at byte {at}, {left} are left")]
    LzoFrame {
        what: &'static str,
        found: usize,
        at: usize,
        left: usize,
    },
    #[error("LZO segment {index}: {source}")]
    LzoSegment { index: usize, source: LzoError },
}

/// Decompresses a whole extent, or an inline one. The result has exactly `ram_bytes`: where the stream holds less, the
/// rest is zeros (the kernel compresses to the end of the file and fills up so), more is cut off.
pub fn decompress(compression_type: u8, compressed: &[u8], ram_bytes: u64) -> Result<Vec<u8>, DecompressError> {
    let limit = COMPRESSED_EXTENT_BYTES_MAX;
    let too_large = |field, found| DecompressError::TooLarge { field, found, limit };
    let len = usize::try_from(ram_bytes)
        .ok()
        .filter(|len| *len <= limit)
        .ok_or_else(|| too_large("ram_bytes", ram_bytes))?;
    if compressed.len() > limit {
        return Err(too_large("the compressed extent", compressed.len() as u64));
    }
    let mut out = match compression_type {
        compression::ZLIB => zlib(compressed, len)?,
        compression::LZO => lzo_frame(compressed, len)?,
        compression::ZSTD => zstd_frame(compressed, len)?,
        found => return Err(DecompressError::UnknownType { found }),
    };
    out.resize(len, 0);
    Ok(out)
}

/// As [`decompress`], into all of `out`.
pub fn decompress_into(compression_type: u8, compressed: &[u8], out: &mut [u8]) -> Result<(), DecompressError> {
    let is_bounded = compressed.len().max(out.len()) <= COMPRESSED_EXTENT_BYTES_MAX;
    let done = match compression_type {
        compression::ZSTD if is_bounded => zstd_into(compressed, out),
        compression::ZLIB if is_bounded => zlib_into(compressed, out),
        _ => None,
    };
    if let Some(len) = done {
        out[len..].fill(0);
        return Ok(());
    }
    // What is unusual, and what is wrong, goes the way that can say so.
    let data = decompress(compression_type, compressed, out.len() as u64)?;
    out.copy_from_slice(&data);
    Ok(())
}

/// In one call; `None` where the frame is not one that fits `out`, or has a window of its own, whose size this does not
/// look at.
fn zstd_into(compressed: &[u8], out: &mut [u8]) -> Option<usize> {
    /// Offset of the frame header descriptor (RFC 8878), and its bit for frames whose window is their content.
    const DESCRIPTOR: usize = 4;
    const SINGLE_SEGMENT: u8 = 1 << 5;
    compressed.get(DESCRIPTOR).filter(|byte| *byte & SINGLE_SEGMENT != 0)?;
    let frame = zstd::zstd_safe::find_frame_compressed_size(compressed).ok()?;
    zstd::zstd_safe::decompress(out, compressed.get(..frame)?).ok()
}

/// In one call; `None` where the stream does not end within `out`.
fn zlib_into(compressed: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut stream = flate2::Decompress::new(true);
    let status = stream
        .decompress(compressed, out, flate2::FlushDecompress::Finish)
        .ok()?;
    let len = usize::try_from(stream.total_out()).ok()?;
    (status == flate2::Status::StreamEnd).then_some(len)
}

/// Reads up to `len` bytes of what a decoder gives.
fn read_up_to(reader: impl Read, len: usize, kind: &'static str) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::with_capacity(len);
    reader
        .take(len as u64)
        .read_to_end(&mut out)
        .map_err(|error| DecompressError::Stream {
            kind,
            what: error.to_string(),
        })?;
    Ok(out)
}

fn zlib(compressed: &[u8], len: usize) -> Result<Vec<u8>, DecompressError> {
    read_up_to(flate2::bufread::ZlibDecoder::new(compressed), len, "zlib")
}

fn zstd_frame(compressed: &[u8], len: usize) -> Result<Vec<u8>, DecompressError> {
    let stream = |what: std::io::Error| DecompressError::Stream {
        kind: "zstd",
        what: what.to_string(),
    };
    // One frame: what follows it up to the end of the last sector is padding.
    let mut decoder = zstd::stream::read::Decoder::with_buffer(compressed)
        .map_err(stream)?
        .single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(stream)?;
    read_up_to(decoder, len, "zstd")
}

/// btrfs's frame: the length of the whole, then segments, each with its length before it. A length does not cross the
/// end of a sector: where fewer than four bytes are left in one, they are padding.
fn lzo_frame(compressed: &[u8], len: usize) -> Result<Vec<u8>, DecompressError> {
    let length_at = |at: usize| -> Option<usize> {
        let bytes = compressed.get(at..at.checked_add(LZO_LENGTH_BYTES)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
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
    let mut out = Vec::with_capacity(len);
    let mut at = LZO_LENGTH_BYTES;
    let mut index = 0;
    while at < total && out.len() < len {
        let segment_len = length_at(at).ok_or_else(|| frame("length", LZO_LENGTH_BYTES, at))?;
        at += LZO_LENGTH_BYTES;
        if segment_len > LZO_SEGMENT_COMPRESSED_BYTES_MAX || segment_len > total.saturating_sub(at) {
            return Err(frame("segment", segment_len, at));
        }
        let segment = compressed.get(at..at + segment_len).unwrap_or_default();
        let before = out.len();
        lzo::decode(segment, &mut out, LZO_SEGMENT_BYTES)
            .map_err(|source| DecompressError::LzoSegment { index, source })?;
        at += segment_len;
        // The kernel counts the padding as part of the whole, behind the last segment too.
        let left_in_sector = LZO_SEGMENT_BYTES - at % LZO_SEGMENT_BYTES;
        if left_in_sector < LZO_LENGTH_BYTES {
            at += left_in_sector;
        }
        if at < total && out.len() - before != LZO_SEGMENT_BYTES {
            return Err(frame(
                "output of a segment that is not the last",
                out.len() - before,
                at,
            ));
        }
        index += 1;
    }
    out.truncate(len);
    Ok(out)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn both_ways_give_the_same() {
        let text: Vec<u8> = (0..3000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .take(20_000)
            .collect();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &text).unwrap();
        let streams = [
            (compression::ZLIB, encoder.finish().unwrap()),
            (compression::ZSTD, zstd::bulk::compress(&text, 3).unwrap()),
            (compression::ZSTD, zstd::stream::encode_all(&text[..], 3).unwrap()),
        ];
        for (ty, mut packed) in streams {
            packed.resize(packed.len().next_multiple_of(4096), 0);
            // Whole, cut off, filled up.
            for len in [20_000, 10_000, 24_576] {
                let mut out = vec![0xee; len];
                let done = decompress_into(ty, &packed, &mut out);
                assert!(done.map(|()| out) == decompress(ty, &packed, len as u64), "{ty}: {len}");
            }
            packed[60] ^= 0xff;
            packed.truncate(300);
            let mut out = vec![0; 20_000];
            assert!(
                decompress_into(ty, &packed, &mut out).is_err(),
                "{ty}: a damaged stream"
            );
        }
    }

    /// As the kernel writes a file of 4097 bytes that end three, two, one bytes before a sector does: nobody could read it.
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
