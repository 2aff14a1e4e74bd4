//! LZO1X decoding, and the frame that btrfs puts around it. Decoding only; written from the description of the stream
//! in the kernel's documentation (`Documentation/staging/lzo.rst`).
//!
//! No input makes it panic, read or write out of bounds, or produce more than the limit it was given.

/// Why a stream does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LzoError {
    #[error("the input ends within the stream")]
    InputEnd,
    #[error("more than {limit_bytes} bytes come out")]
    OutputLimit { limit_bytes: usize },
    #[error("a match reaches {distance} bytes back, there are {written}")]
    Distance { distance: usize, written: usize },
    #[error("bytes follow the end of the stream")]
    Trailing,
}

type Result<T> = std::result::Result<T, LzoError>;

/// The distance that `0001....` instructions add to; exactly this one, with a short match, ends the stream.
const FAR_DISTANCE: usize = 16384;
/// First instructions up to this are ordinary ones; above it they are a run of literals, less this many.
const FIRST_LITERALS_BASE: u8 = 17;

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<usize> {
        let (&first, rest) = self.0.split_first().ok_or(LzoError::InputEnd)?;
        self.0 = rest;
        Ok(first.into())
    }
    fn le16(&mut self) -> Result<usize> {
        Ok(self.byte()? | self.byte()? << 8)
    }
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(len).ok_or(LzoError::InputEnd)?;
        self.0 = rest;
        Ok(now)
    }
    /// A length that did not fit the instruction: 255 for every zero byte, then a last byte.
    fn long_length(&mut self, base: usize) -> Result<usize> {
        let zeros = self.0.iter().take_while(|b| **b == 0).count();
        self.take(zeros)?;
        Ok(base + zeros * 255 + self.byte()?)
    }
}

struct Output<'a> {
    bytes: &'a mut Vec<u8>,
    /// Where this stream's output begins: matches do not reach below it.
    start: usize,
    limit_bytes: usize,
}

impl Output<'_> {
    fn room(&self, len: usize) -> Result<()> {
        if len > self.limit_bytes - (self.bytes.len() - self.start) {
            return Err(LzoError::OutputLimit {
                limit_bytes: self.limit_bytes,
            });
        }
        Ok(())
    }
    fn literals(&mut self, input: &mut Input<'_>, len: usize) -> Result<()> {
        self.room(len)?;
        self.bytes.extend_from_slice(input.take(len)?);
        Ok(())
    }
    fn repeat(&mut self, distance: usize, len: usize) -> Result<()> {
        let written = self.bytes.len() - self.start;
        if distance > written {
            return Err(LzoError::Distance { distance, written });
        }
        self.room(len)?;
        let mut from = self.bytes.len() - distance;
        let mut left = len;
        // The source may overlap what is being written: each round copies what is there by now.
        while left > 0 {
            let now = left.min(self.bytes.len() - from);
            self.bytes.extend_from_within(from..from + now);
            from += now;
            left -= now;
        }
        Ok(())
    }
}

/// Decodes one LZO1X stream, to its end marker, and appends what comes out. Nothing may follow the end marker.
pub fn decode(input: &[u8], output: &mut Vec<u8>, limit_bytes: usize) -> Result<()> {
    let mut input = Input(input);
    let start = output.len();
    let mut out = Output {
        bytes: output,
        start,
        limit_bytes,
    };
    // Literals that the last instruction copied: 0 to 3, or 4 for "a long run". It changes what `0000....` means.
    let mut state = 0;
    if let Some(&first) = input.0.first()
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
                    return if input.0.is_empty() {
                        Ok(())
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
        let mut out = Vec::new();
        decode(input, &mut out, 4096).map(|()| out)
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
            let mut out = Vec::new();
            let _ = decode(&noise, &mut out, 4096);
            assert!(out.len() <= 4096);
        }
    }
}
