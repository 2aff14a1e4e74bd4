//! LZO1X decoding, and the frame that btrfs puts around it. Decoding only; written from the
//! description of the stream in the kernel's documentation (`Documentation/staging/lzo.rst`).
//!
//! No input makes it panic, read or write out of bounds, or produce more than the limit it was
//! given.

/// Why a stream does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LzoError {
    /// The input ends within the stream.
    #[error("the input ends within the stream")]
    InputEnd,
    /// The output would exceed its limit.
    #[error("more than {limit_bytes} bytes come out")]
    OutputLimit {
        /// The limit.
        limit_bytes: usize,
    },
    /// A match refers to what is before the output.
    #[error("a match reaches {distance} bytes back, there are {written}")]
    Distance {
        /// Bytes back.
        distance: usize,
        /// Bytes of output so far.
        written: usize,
    },
    /// The stream ends before its input does.
    #[error("bytes follow the end of the stream")]
    Trailing,
}

type Result<T> = std::result::Result<T, LzoError>;

/// The distance that `0001....` instructions add to; exactly this one, with a short match, ends the
/// stream.
const FAR_DISTANCE: usize = 16384;
/// First instructions up to this are ordinary ones; above it they are a run of literals, less this
/// many.
const FIRST_LITERALS_BASE: u8 = 17;

/// Copies of up to this many bytes are made in one go where there is room for all of it: what is
/// too much is overwritten by what comes next.
const WIDE: usize = 16;
/// As [`WIDE`], for matches that lie nearer than that.
const HALF: usize = WIDE / 2;

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<usize> {
        let &byte = self.bytes.get(self.at).ok_or(LzoError::InputEnd)?;
        self.at += 1;
        Ok(byte.into())
    }
    fn le16(&mut self) -> Result<usize> {
        let rest = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk());
        self.at += 2;
        Ok(u16::from_le_bytes(*rest.ok_or(LzoError::InputEnd)?).into())
    }
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + len).ok_or(LzoError::InputEnd)?;
        self.at += len;
        Ok(taken)
    }
    /// A length that did not fit the instruction: 255 for every zero byte, then a last byte.
    fn long_length(&mut self, base: usize) -> Result<usize> {
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + last),
            }
        }
    }
    /// `WIDE` bytes from here on, if there are as many.
    fn wide(&self) -> Option<&'a [u8; WIDE]> {
        self.bytes.get(self.at..)?.first_chunk()
    }
}

struct Output<'a> {
    /// More than the stream may make, where there is more room.
    bytes: &'a mut [u8],
    len: usize,
    limit_bytes: usize,
}

impl Output<'_> {
    fn room(&self, len: usize) -> Result<()> {
        if len > self.limit_bytes - self.len {
            return Err(LzoError::OutputLimit {
                limit_bytes: self.limit_bytes,
            });
        }
        Ok(())
    }
    #[inline(always)]
    fn literals(&mut self, input: &mut Input<'_>, len: usize) -> Result<()> {
        self.room(len)?;
        let to = &mut self.bytes[self.len..];
        if len <= WIDE
            && let (Some(from), Some(to)) = (input.wide(), to.first_chunk_mut())
        {
            *to = *from;
            input.at += len;
        } else {
            to[..len].copy_from_slice(input.take(len)?);
        }
        self.len += len;
        Ok(())
    }
    #[inline(always)]
    fn repeat(&mut self, distance: usize, len: usize) -> Result<()> {
        if distance > self.len {
            return Err(LzoError::Distance {
                distance,
                written: self.len,
            });
        }
        self.room(len)?;
        let (from, end) = (self.len - distance, self.len + len);
        if distance >= HALF && self.bytes.len() - end >= WIDE {
            if distance >= WIDE {
                self.copy_in_steps::<WIDE>(from, end);
            } else {
                self.copy_in_steps::<HALF>(from, end);
            }
        } else {
            self.copy_exactly(from, len);
        }
        self.len = end;
        Ok(())
    }
    /// Copies from `from` on, which lies at least `STEP` bytes back, up to `end`, and fewer than
    /// `STEP` bytes more.
    #[inline(always)]
    fn copy_in_steps<const STEP: usize>(&mut self, from: usize, end: usize) {
        // One step for most matches; longer ones catch up with what the first ones wrote.
        let (mut from, mut to) = (from, self.len);
        while to < end {
            self.bytes.copy_within(from..from + STEP, to);
            from += STEP;
            to += STEP;
        }
    }
    fn copy_exactly(&mut self, from: usize, len: usize) {
        let (mut to, end) = (self.len, self.len + len);
        // The source may overlap what is being written: each round copies what is there by now.
        while to < end {
            let now = (to - from).min(end - to);
            self.bytes.copy_within(from..from + now, to);
            to += now;
        }
    }
}

/// Decodes one LZO1X stream, to its end marker, into the start of `out`, and returns how many bytes
/// it made, `limit_bytes` at most. Nothing may follow the end marker. Bytes of `out` behind the
/// result may be overwritten, too: decoding is faster where there are some.
pub(crate) fn decode(input: &[u8], out: &mut [u8], limit_bytes: usize) -> Result<usize> {
    let mut input = Input { bytes: input, at: 0 };
    let mut out = Output {
        limit_bytes: limit_bytes.min(out.len()),
        bytes: out,
        len: 0,
    };
    // Literals that the last instruction copied: 0 to 3, or 4 for "a long run". It changes what
    // `0000....` means.
    let mut state = 0;
    if let Some(&first) = input.bytes.first()
        && first > FIRST_LITERALS_BASE
    {
        input.byte()?;
        let len = usize::from(first - FIRST_LITERALS_BASE);
        out.literals(&mut input, len)?;
        state = len.min(4);
    }
    loop {
        let op = input.byte()?;
        let (distance, len, after) = match op {
            0..=15 if state == 0 => {
                let len = if op == 0 { input.long_length(15 + 3)? } else { op + 3 };
                out.literals(&mut input, len)?;
                state = 4;
                continue;
            }
            0..=15 => {
                let low = op >> 2 & 3;
                let high = input.byte()? << 2;
                if state == 4 {
                    (high + low + 2049, 3, op & 3)
                } else {
                    (high + low + 1, 2, op & 3)
                }
            }
            16..=31 => {
                let len = if op & 7 == 0 {
                    input.long_length(7 + 2)?
                } else {
                    (op & 7) + 2
                };
                let low = input.le16()?;
                let distance = FAR_DISTANCE + ((op & 8) << 11) + (low >> 2);
                if distance == FAR_DISTANCE {
                    return if input.at == input.bytes.len() {
                        Ok(out.len)
                    } else {
                        Err(LzoError::Trailing)
                    };
                }
                (distance, len, low & 3)
            }
            32..=63 => {
                let len = if op & 31 == 0 {
                    input.long_length(31 + 2)?
                } else {
                    (op & 31) + 2
                };
                let low = input.le16()?;
                ((low >> 2) + 1, len, low & 3)
            }
            64..=127 => {
                let distance = (input.byte()? << 3) + (op >> 2 & 7) + 1;
                (distance, 3 + (op >> 5 & 1), op & 3)
            }
            _ => {
                let distance = (input.byte()? << 3) + (op >> 2 & 7) + 1;
                (distance, 5 + (op >> 5 & 3), op & 3)
            }
        };
        out.repeat(distance, len)?;
        out.literals(&mut input, after)?;
        state = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>> {
        // With room behind what comes out, and without: what comes out is the same.
        let mut out = vec![0xee; 5000];
        let wide = decode(input, &mut out, 4096);
        let exact_len = *wide.as_ref().unwrap_or(&4096);
        let mut exact = vec![0xee; exact_len];
        assert_eq!(decode(input, &mut exact, 4096), wide);
        let len = wide?;
        out.truncate(len);
        assert!(exact == out);
        Ok(out)
    }

    #[test]
    fn instructions_by_hand() {
        let end = [0x11, 0, 0];
        let stream = |body: &[u8]| [body, &end].concat();
        // Four literals at the start (17 + 4).
        assert_eq!(decoded(&stream(b"\x15abcd")).unwrap(), b"abcd");
        // A long literal run of 18 + 2 bytes.
        assert_eq!(
            decoded(&stream(b"\x00\x02abcdefghijklmnopqrst")).unwrap(),
            b"abcdefghijklmnopqrst"
        );
        // 01LDDDSS: length 4 (L = 1), distance 2, one literal after it. The match overlaps itself.
        assert_eq!(decoded(&stream(b"\x13ab\x65\x00!")).unwrap(), b"ababab!");
        // 001LLLLL with a length of its own: 33 + 0 * 255 + 7 = 40, distance 1.
        assert_eq!(decoded(&stream(b"\x12a\x20\x07\x00\x00")).unwrap(), [b'a'; 41]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(decoded(b""), Err(LzoError::InputEnd));
        assert_eq!(decoded(b"\x15ab"), Err(LzoError::InputEnd));
        assert_eq!(decoded(b"\x11\x00\x00x"), Err(LzoError::Trailing));
        let far = decoded(b"\x12a\x20\x07\x08\x00\x11\x00\x00");
        assert_eq!(
            far,
            Err(LzoError::Distance {
                distance: 3,
                written: 1
            })
        );
        let mut bomb = b"\x12a\x20".to_vec();
        bomb.extend([0; 1000]);
        bomb.extend(b"\x01\x00\x00\x11\x00\x00");
        assert_eq!(decoded(&bomb), Err(LzoError::OutputLimit { limit_bytes: 4096 }));
    }

    #[test]
    fn noise_never_panics() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000 {
            let noise: Vec<u8> = (0..round % 97)
                .map(|_| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    (x >> 56) as u8
                })
                .collect();
            let _ = decoded(&noise);
        }
    }
}
