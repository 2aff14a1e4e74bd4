//! Whether compressed bytes decompress.
//!
//! Facts from the format's documentation: zlib and zstd streams as they are, padded to sectors; LZO
//! in a frame of its own, whose segments hold a sector each. What comes out may be shorter than the
//! extent claims: the rest reads as zeros.

use std::io::Read;

use btrfs_format::items::compression;

use crate::util::{count, index, round_up};

/// The most that a compressed extent holds, on disk and in memory.
pub(crate) const EXTENT_BYTES_MAX: u64 = 128 << 10;
/// The largest window that the kernel accepts.
const ZSTD_WINDOW_LOG_MAX: u32 = 17;
const LENGTH_BYTES: usize = 4;
/// The worst that LZO makes of a sector, as the kernel reckons it.
const fn lzo_bytes_max(sector: usize) -> usize {
    sector.saturating_add(sector >> 4).saturating_add(64 + 3 + 2)
}

/// The reason why the data of an extent, or of an inline one, cannot be decompressed.
pub(crate) fn decompress(kind: u8, bytes: &[u8], ram_bytes: u64, sectorsize: u64) -> Result<(), String> {
    if ram_bytes > EXTENT_BYTES_MAX || count(bytes.len()) > EXTENT_BYTES_MAX {
        return Err(format!("{ram_bytes} bytes in {}", bytes.len()));
    }
    match kind {
        compression::ZLIB => {
            drain(flate2::bufread::ZlibDecoder::new(bytes), ram_bytes).map_err(|e| format!("zlib: {e}"))
        }
        compression::ZSTD => zstd_frame(bytes, ram_bytes).map_err(|e| format!("zstd: {e}")),
        compression::LZO => lzo_frame(bytes, ram_bytes, sectorsize),
        _ => Err(format!("compression {kind} is unknown")),
    }
}

fn drain(reader: impl Read, bytes_max: u64) -> std::io::Result<()> {
    std::io::copy(&mut reader.take(bytes_max), &mut std::io::sink()).map(|_| ())
}

fn zstd_frame(bytes: &[u8], ram_bytes: u64) -> std::io::Result<()> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes)?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    drain(decoder, ram_bytes)
}

fn lzo_frame(bytes: &[u8], ram_bytes: u64, sectorsize: u64) -> Result<(), String> {
    let sector = index(sectorsize).max(1);
    let total = length_at(bytes, 0).ok_or("LZO: no length")?;
    // The kernel refuses an extent with sectors that the frame does not reach.
    if total > bytes.len() || round_up(count(total), sectorsize) < count(bytes.len()) {
        return Err(format!("LZO: a frame of {total} bytes in {}", bytes.len()));
    }
    let mut at = LENGTH_BYTES;
    let mut done = 0u64;
    while at < total && done < ram_bytes {
        let len = length_at(bytes, at).ok_or_else(|| format!("LZO: no length at {at}"))?;
        let from = at.saturating_add(LENGTH_BYTES);
        at = from.saturating_add(len);
        let segment = bytes
            .get(from..at)
            .filter(|_| at <= total && len <= lzo_bytes_max(sector));
        let segment =
            segment.ok_or_else(|| format!("LZO: a segment of {len} bytes at {from}, the frame has {total}"))?;
        // A length does not cross the end of a sector; what is left of one belongs to the frame,
        // behind the last segment too.
        let left = sector.saturating_sub(at.checked_rem(sector).unwrap_or(0));
        if left < LENGTH_BYTES {
            at = at.saturating_add(left);
        }
        let out = lzo_segment(segment, sector).map_err(|what| format!("LZO: segment at {from}: {what}"))?;
        if at < total && out != sector {
            return Err(format!("LZO: segment at {from} has {out} bytes and is not the last"));
        }
        done = done.saturating_add(count(out));
    }
    Ok(())
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*four)).ok()
}

/// The instructions of one LZO1X stream (`Documentation/staging/lzo.rst`), followed without making
/// the output: it matters only that all is within bounds. Returns how many bytes would come out.
fn lzo_segment(input: &[u8], bytes_max: usize) -> Result<usize, &'static str> {
    const ENDS: &str = "it ends too early";
    let mut rest = input.iter().copied();
    let mut out = 0usize;
    let skip = |rest: &mut dyn Iterator<Item = u8>, out: &mut usize, len: usize| {
        let found = rest.take(len).count();
        *out = out.saturating_add(len);
        if found < len {
            Err(ENDS)
        } else if *out > bytes_max {
            Err("it is too long")
        } else {
            Ok(())
        }
    };
    // A length that did not fit: 255 for each zero byte, and the byte behind them.
    let long = |rest: &mut dyn Iterator<Item = u8>, base: usize| {
        let mut len = base;
        for byte in rest {
            if byte != 0 {
                return Ok(len.saturating_add(byte.into()));
            }
            len = len.saturating_add(255);
        }
        Err(ENDS)
    };
    // How many literals the instruction before copied: 4 stands for more than 3.
    let mut state = 0u8;
    if let Some(first) = input.first().copied().filter(|first| *first > 17) {
        rest.next();
        let len = usize::from(first.saturating_sub(17));
        skip(&mut rest, &mut out, len)?;
        state = u8::try_from(len.min(4)).unwrap_or(4);
    }
    loop {
        let op = rest.next().ok_or(ENDS)?;
        let low = usize::from(op);
        let (distance, len, after) = match op {
            0..=15 if state == 0 => {
                let len = if op == 0 {
                    long(&mut rest, 18)?
                } else {
                    low.saturating_add(3)
                };
                skip(&mut rest, &mut out, len)?;
                state = 4;
                continue;
            }
            0..=15 => {
                let high = usize::from(rest.next().ok_or(ENDS)?) << 2;
                let back = high | (low >> 2);
                if state == 4 {
                    (back.saturating_add(2049), 3, op & 3)
                } else {
                    (back.saturating_add(1), 2, op & 3)
                }
            }
            16..=63 => {
                let (mask, base) = if op < 32 { (7, 16384) } else { (31, 1) };
                let short = low & mask;
                let len = if short == 0 {
                    long(&mut rest, mask.saturating_add(2))?
                } else {
                    short.saturating_add(2)
                };
                let (a, b) = (rest.next().ok_or(ENDS)?, rest.next().ok_or(ENDS)?);
                let back = usize::from(u16::from_le_bytes([a, b]) >> 2);
                let far = if op < 32 { (low & 8) << 11 } else { 0 };
                let distance = back.saturating_add(far).saturating_add(base);
                if op < 32 && distance == base {
                    return if rest.next().is_none() {
                        Ok(out)
                    } else {
                        Err("bytes follow its end")
                    };
                }
                (distance, len, a & 3)
            }
            64.. => {
                let high = usize::from(rest.next().ok_or(ENDS)?) << 3;
                let back = high | (low >> 2 & 7);
                let len = if op < 128 {
                    (low >> 5 & 1).saturating_add(3)
                } else {
                    (low >> 5 & 3).saturating_add(5)
                };
                (back.saturating_add(1), len, op & 3)
            }
        };
        if distance > out {
            return Err("a match reaches back too far");
        }
        out = out.saturating_add(len);
        if out > bytes_max {
            return Err("it is too long");
        }
        skip(&mut rest, &mut out, after.into())?;
        state = after;
    }
}
