//! Compression of file extents: the streams that the kernel reads.

use std::fmt;

use btrfs_format::items::compression;
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;
use cowshed_vfs::{Algorithm, Compression};
use flate2::{Compress, FlushCompress, Status};
use zstd::bulk::Compressor as ZstdCompressor;
use zstd::zstd_safe::CParameter;

use super::lzo_encode;
use crate::block::round_up;
use crate::spare::Spares;

/// The number of an algorithm in extent items.
pub fn on_disk(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Zlib => compression::ZLIB,
        Algorithm::Lzo => compression::LZO,
        Algorithm::Zstd => compression::ZSTD,
    }
}

/// The incompatible feature that an extent of the algorithm makes of the volume.
pub fn feature(algorithm: Algorithm) -> u64 {
    use btrfs_format::features::incompat;
    match algorithm {
        Algorithm::Zlib => 0,
        Algorithm::Lzo => incompat::COMPRESS_LZO,
        Algorithm::Zstd => incompat::COMPRESS_ZSTD,
    }
}

/// What the property `btrfs.compression` says: an algorithm, perhaps with a level; what else
/// follows says nothing. Without a level it has the mount's, where that is of the same algorithm.
pub(crate) fn of_property(value: &[u8], mounted: Option<Compression>) -> Option<Compression> {
    let algorithm = Algorithm::at_start_of(value)?;
    let named = std::str::from_utf8(value).ok().filter(|text| text.contains(':'));
    let mounted = mounted.filter(|mounted| mounted.algorithm() == algorithm);
    let by_name = named.and_then(|text| text.parse().ok());
    Some(by_name.or(mounted).unwrap_or(Compression::new(algorithm, 0)))
}

/// What a mount compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressPolicy {
    /// Algorithm and level.
    pub how: Compression,
    /// Even where a sample does not promise anything, and in files that did not compress before.
    pub force: bool,
}

/// Streams of two groups of extents.
static STREAMS: Spares = Spares::new(256);

/// Takes the memory of a stream back that is not needed any more.
pub(crate) fn recycle(stream: Vec<u8>) {
    STREAMS.give(stream);
}

/// Frees the streams' memory that is kept for reuse.
pub(crate) fn free_spares() {
    STREAMS.free();
}

/// The memory of compressors: larger than what it compresses, and slow to make, so that it is kept.
#[derive(Default)]
pub struct Encoder {
    /// Where streams are made, before they get memory of their own size: new memory for the longest
    /// that one may be costs a fifth of LZO's time, most of it for pages that the stream does not
    /// reach.
    out: Vec<u8>,
    zlib: Option<(i32, Compress)>,
    zstd: Option<(i32, ZstdCompressor<'static>)>,
    lzo: Option<Box<lzo_encode::Table>>,
}

impl Encoder {
    /// Compresses a whole extent, if the result has at most `limit_bytes`. It has room for zeros up
    /// to a whole block.
    pub fn compress(&mut self, how: Compression, data: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        let mut out = std::mem::take(&mut self.out);
        let len = match how.algorithm() {
            Algorithm::Zlib => self.zlib(how.level(), data, with_len(&mut out, limit_bytes)),
            Algorithm::Lzo => self.lzo_frame(data, limit_bytes, &mut out),
            Algorithm::Zstd => self.zstd(how.level(), data, with_len(&mut out, limit_bytes)),
        };
        let packed = len.map(|len| {
            let mut packed = STREAMS.take().unwrap_or_default();
            packed.reserve_exact(round_up(len as u64) as usize);
            packed.extend_from_slice(&out[..len]);
            packed
        });
        self.out = out;
        packed
    }

    fn zlib(&mut self, level: i32, data: &[u8], out: &mut [u8]) -> Option<usize> {
        if self.zlib.as_ref().is_none_or(|(known, _)| *known != level) {
            let level_zlib = flate2::Compression::new(level.unsigned_abs());
            self.zlib = Some((level, Compress::new(level_zlib, true)));
        }
        let (_, stream) = self.zlib.as_mut()?;
        stream.reset();
        match stream.compress(data, out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => usize::try_from(stream.total_out()).ok(),
            Ok(Status::Ok | Status::BufError) | Err(_) => {
                // A stream that was not finished cannot be used again: zlib-rs 0.6 forgets at a
                // reset that a block of level 1 was begun, and the next stream would lack its
                // beginning.
                self.zlib = None;
                None
            }
        }
    }

    fn zstd(&mut self, level: i32, data: &[u8], out: &mut [u8]) -> Option<usize> {
        if self.zstd.as_ref().is_none_or(|(known, _)| *known != level) {
            let mut stream = ZstdCompressor::new(level).ok()?;
            let window = CParameter::WindowLog(super::decompress::ZSTD_WINDOW_LOG_MAX);
            stream.set_parameter(window).ok()?;
            self.zstd = Some((level, stream));
        }
        let (_, stream) = self.zstd.as_mut()?;
        stream.compress_to_buffer(data, out).ok()
    }

    /// See `decompress::lzo_frame`.
    fn lzo_frame(&mut self, data: &[u8], limit_bytes: usize, out: &mut Vec<u8>) -> Option<usize> {
        use super::decompress::{LZO_LENGTH_BYTES, LZO_SEGMENT_BYTES};
        let table = self.lzo.get_or_insert_default();
        out.clear();
        out.reserve(limit_bytes + 2 * LZO_SEGMENT_BYTES);
        let put_length = |out: &mut Vec<u8>, at: usize, len: usize| {
            let len = u32::try_from(len).expect("extents are short");
            out[at..at + LZO_LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
        };
        out.extend_from_slice(&[0; LZO_LENGTH_BYTES]);
        for segment in data.chunks(LZO_SEGMENT_BYTES) {
            let left_in_sector = LZO_SEGMENT_BYTES - out.len() % LZO_SEGMENT_BYTES;
            if left_in_sector < LZO_LENGTH_BYTES {
                out.resize(out.len() + left_in_sector, 0);
            }
            let head = out.len();
            out.extend_from_slice(&[0; LZO_LENGTH_BYTES]);
            lzo_encode::encode(table, segment, out);
            if out.len() > limit_bytes {
                return None;
            }
            let len = out.len() - head - LZO_LENGTH_BYTES;
            put_length(out, head, len);
        }
        let total = out.len();
        put_length(out, 0, total);
        Some(total)
    }
}

/// The first `len` bytes of a buffer, whatever they hold; it grows only.
fn with_len(out: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if out.len() < len {
        out.resize(len, 0);
    }
    &mut out[..len]
}

/// Encoders that are not in use.
pub(crate) struct Encoders(Mutex<Vec<Encoder>>);

impl Default for Encoders {
    fn default() -> Self {
        Self(Mutex::new(LockRank::Encoders, Vec::new()))
    }
}

/// As many encoders are kept as threads may use at the same time on a large machine.
const ENCODERS_MAX: usize = 32;

impl Encoders {
    /// Compresses with any encoder that is free, or a new one.
    pub(crate) fn compress(&self, how: Compression, data: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        let kept = self.0.lock().pop();
        let mut encoder = kept.unwrap_or_default();
        let result = encoder.compress(how, data, limit_bytes);
        let mut kept = self.0.lock();
        if kept.len() < ENCODERS_MAX {
            kept.push(encoder);
        }
        result
    }
}

impl fmt::Debug for Encoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoders({})", self.0.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::decompress::decompress;
    use super::*;
    use crate::testing::Dice;

    #[test]
    fn property_without_level_takes_the_level_of_the_mount() {
        let mounted = Some(Compression::new(Algorithm::Zstd, 9));
        let property = |value: &[u8]| of_property(value, mounted).map(|how| how.to_string());
        assert_eq!(property(b"zstd:7").unwrap(), "zstd:7");
        assert_eq!(property(b"zstd").unwrap(), "zstd:9");
        assert_eq!(
            property(b"zlibber").unwrap(),
            "zlib:3",
            "as the kernel, which looks at the start"
        );
        assert_eq!(property(b"none"), None);
    }

    /// Half text, half noise, in pieces.
    fn mixture(seed: u64, len: usize) -> Vec<u8> {
        let mut dice = Dice::new(seed);
        let mut data = Vec::new();
        while data.len() < len {
            let piece = dice.below(700) as usize;
            if dice.below(2) == 0 {
                data.extend((0..piece).map(|_| dice.below(256) as u8));
            } else {
                data.extend(
                    format!("line {} of a text\n", dice.below(50))
                        .bytes()
                        .cycle()
                        .take(piece),
                );
            }
        }
        data.truncate(len);
        data
    }

    fn all() -> Vec<Compression> {
        let zlib = (1..=9).map(|level| Compression::new(Algorithm::Zlib, level));
        let zstd = (-15..=15).map(|level| Compression::new(Algorithm::Zstd, level));
        zlib.chain(zstd).chain([Compression::new(Algorithm::Lzo, 0)]).collect()
    }

    #[test]
    fn extents_of_all_levels_and_sizes_come_back() {
        let mut encoder = Encoder::default();
        for how in all() {
            for (seed, len) in [
                (1, 1),
                (2, 100),
                (3, 2048),
                (4, 4096),
                (5, 4097),
                (6, 65_536),
                (7, 128 << 10),
            ] {
                let data = mixture(seed, len);
                let packed = encoder.compress(how, &data, len + 200).unwrap();
                assert!(
                    len < 4096 || packed.len() < len * 3 / 4,
                    "{how}: {len} became {}",
                    packed.len()
                );
                let back = decompress(on_disk(how.algorithm()), &packed, len).unwrap();
                assert!(back == data, "{how}, {len} bytes");
                let again = encoder.compress(how, &data, len + 200);
                assert_eq!(
                    again.as_deref(),
                    Some(&packed[..]),
                    "{how}: nothing is left of earlier data"
                );
                assert!(
                    encoder.compress(how, &data, packed.len() - 1).is_none(),
                    "{how}: the limit is kept"
                );
            }
        }
    }

    /// Lengths of segments that leave 0 to 3 bytes in a sector, where the next length does not fit.
    #[test]
    fn lengths_do_not_cross_sectors() {
        let mut encoder = Encoder::default();
        let lzo = Compression::new(Algorithm::Lzo, 0);
        for literals in 0..300 {
            let mut dice = Dice::new(literals);
            let mut data: Vec<u8> = (0..4096 - literals as usize).map(|_| dice.below(256) as u8).collect();
            data.resize(4096, 7);
            data.extend(mixture(literals, 3 * 4096));
            let packed = encoder.compress(lzo, &data, data.len() * 2).unwrap();
            assert!(decompress(compression::LZO, &packed, data.len()).unwrap() == data);
        }
    }

    /// Of data that compresses little, with limits that are met or not, one after the other with
    /// the same encoder.
    #[test]
    fn what_an_encoder_saw_before_does_not_matter() {
        let mut dice = Dice::new(5);
        let mut encoder = Encoder::default();
        for how in [
            "zlib:1", "zlib:2", "zlib:3", "zlib:6", "zlib:9", "lzo", "zstd:-5", "zstd:1", "zstd:3", "zstd:6",
        ] {
            let how: Compression = how.parse().unwrap();
            let mut packed_count = 0;
            for round in 0..40 {
                let values = [255, 60, 40, 3][dice.below(4) as usize];
                let len = 16_384 + 4096 * dice.below(29);
                let data: Vec<u8> = (0..len).map(|_| 1 + dice.below(values) as u8).collect();
                assert_eq!(encoder.compress(how, &data, data.len() / 4 % 5000), None);
                let Some(packed) = encoder.compress(how, &data, data.len() - 4096) else {
                    continue;
                };
                packed_count += 1;
                let back = decompress(on_disk(how.algorithm()), &packed, len as usize);
                assert!(
                    back.as_ref() == Ok(&data),
                    "{how}, round {round}: {len} bytes of {values} values"
                );
            }
            assert!(packed_count > 5, "{how}: {packed_count}");
        }
    }
}
