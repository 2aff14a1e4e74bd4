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

const ENDS: &str = "it ends too early";
/// The distance that instructions 16 to 31 add to. This one exactly ends the stream.
const FAR_DISTANCE: usize = 16384;

/// A match: copies `len` bytes from `distance` back; `after` literals follow.
struct Match {
    distance: usize,
    len: usize,
    after: u8,
}

/// The instructions of an LZO1X stream (`Documentation/staging/lzo.rst`), followed without making
/// the output: it matters only that all is within bounds.
struct Stream<'a> {
    rest: std::slice::Iter<'a, u8>,
    /// Bytes that have come out.
    out: usize,
    bytes_max: usize,
}

impl Stream<'_> {
    fn byte(&mut self) -> Result<u8, &'static str> {
        self.rest.next().copied().ok_or(ENDS)
    }

    fn grow(&mut self, len: usize) -> Result<(), &'static str> {
        self.out = self.out.saturating_add(len);
        if self.out > self.bytes_max {
            return Err("it is too long");
        }
        Ok(())
    }

    fn literals(&mut self, len: usize) -> Result<(), &'static str> {
        if self.rest.by_ref().take(len).count() < len {
            return Err(ENDS);
        }
        self.grow(len)
    }

    /// A length that did not fit its instruction: 255 for each zero byte, and the byte behind them.
    fn long(&mut self, base: usize) -> Result<usize, &'static str> {
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len = len.saturating_add(255),
                last => return Ok(len.saturating_add(last.into())),
            }
        }
    }

    /// The match of instruction `op`, after an instruction that copied `state` literals.
    fn match_of(&mut self, op: u8, state: u8) -> Result<Match, &'static str> {
        let low = usize::from(op);
        let (distance, len, after) = match op {
            0..=15 => {
                let back = usize::from(self.byte()?) << 2 | low >> 2;
                let (base, len) = if state == 4 { (2049, 3) } else { (1, 2) };
                (back.saturating_add(base), len, op)
            }
            16..=63 => {
                let (mask, base) = if op < 32 { (7, FAR_DISTANCE) } else { (31, 1) };
                let len = match low & mask {
                    0 => self.long(mask.saturating_add(2))?,
                    short => short.saturating_add(2),
                };
                let (a, b) = (self.byte()?, self.byte()?);
                let back = usize::from(u16::from_le_bytes([a, b]) >> 2);
                let far = if op < 32 { (low & 8) << 11 } else { 0 };
                (back.saturating_add(far).saturating_add(base), len, a)
            }
            64.. => {
                let back = usize::from(self.byte()?) << 3 | (low >> 2 & 7);
                let len = if op < 128 {
                    (low >> 5 & 1).saturating_add(3)
                } else {
                    (low >> 5 & 3).saturating_add(5)
                };
                (back.saturating_add(1), len, op)
            }
        };
        let after = after & 3;
        Ok(Match { distance, len, after })
    }
}

/// How many bytes come out of one stream.
fn lzo_segment(input: &[u8], bytes_max: usize) -> Result<usize, &'static str> {
    let mut stream = Stream {
        rest: input.iter(),
        out: 0,
        bytes_max,
    };
    // How many literals the instruction before copied: 4 stands for more than 3.
    let mut state = 0u8;
    if let Some(first) = input.first().filter(|first| **first > 17) {
        stream.byte()?;
        let len = usize::from(first.saturating_sub(17));
        stream.literals(len)?;
        state = u8::try_from(len.min(4)).unwrap_or(4);
    }
    loop {
        let op = stream.byte()?;
        if op < 16 && state == 0 {
            let len = match op {
                0 => stream.long(18)?,
                short => usize::from(short).saturating_add(3),
            };
            stream.literals(len)?;
            state = 4;
            continue;
        }
        let found = stream.match_of(op, state)?;
        if (16..32).contains(&op) && found.distance == FAR_DISTANCE {
            return match stream.rest.next() {
                None => Ok(stream.out),
                Some(_) => Err("bytes follow its end"),
            };
        }
        if found.distance > stream.out {
            return Err("a match reaches back too far");
        }
        stream.grow(found.len)?;
        stream.literals(found.after.into())?;
        state = found.after;
    }
}
