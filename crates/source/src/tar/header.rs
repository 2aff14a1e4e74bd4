//! The header block of an entry.

use std::ops::Range;

/// Bytes of a header, and the unit that contents are padded to.
pub(super) const BLOCK_BYTES: usize = 512;

/// Fields of POSIX ustar and of GNU tar, as byte ranges of the header.
mod field {
    use super::Range;

    pub const NAME: Range<usize> = 0..100;
    pub const MODE: Range<usize> = 100..108;
    pub const UID: Range<usize> = 108..116;
    pub const GID: Range<usize> = 116..124;
    pub const SIZE: Range<usize> = 124..136;
    pub const MTIME: Range<usize> = 136..148;
    pub const CHECKSUM: Range<usize> = 148..156;
    pub const TYPE: usize = 156;
    pub const LINK_NAME: Range<usize> = 157..257;
    pub const MAGIC: Range<usize> = 257..263;
    pub const DEV_MAJOR: Range<usize> = 329..337;
    pub const DEV_MINOR: Range<usize> = 337..345;
    pub const PREFIX: Range<usize> = 345..500;
    /// GNU: four pairs of offset and length.
    pub const SPARSE: Range<usize> = 386..482;
    pub const SPARSE_IS_EXTENDED: usize = 482;
    pub const SPARSE_REAL_SIZE: Range<usize> = 483..495;
    /// In a block that continues the pairs.
    pub const MORE_SPARSE: Range<usize> = 0..504;
    pub const MORE_IS_EXTENDED: usize = 504;
}

/// A header whose checksum is right.
#[derive(Clone, Copy)]
pub(super) struct Header<'h>(&'h [u8; BLOCK_BYTES]);

impl<'h> Header<'h> {
    /// `Ok(None)`: a block of zeros, the end of the archive. Errors: the checksum is wrong.
    pub fn parse(block: &'h [u8; BLOCK_BYTES]) -> Result<Option<Self>, &'static str> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum = |byte: fn(u8) -> i64| -> i64 {
            let counted = block
                .iter()
                .enumerate()
                .map(|(at, value)| match field::CHECKSUM.contains(&at) {
                    true => i64::from(b' '),
                    false => byte(*value),
                });
            counted.sum()
        };
        let stated = number(&block[field::CHECKSUM]);
        // Old programs summed signed bytes.
        let is_right = stated == Some(sum(i64::from)) || stated == Some(sum(|byte| i64::from(byte.cast_signed())));
        is_right
            .then_some(Some(Self(block)))
            .ok_or("no header of a tar entry: its checksum is wrong")
    }

    pub fn kind(&self) -> u8 {
        self.0[field::TYPE]
    }

    /// The name, with what ustar puts before it.
    pub fn name(&self) -> Vec<u8> {
        let name = text(&self.0[field::NAME]);
        let is_ustar = self.0[field::MAGIC] == *b"ustar\0";
        match text(&self.0[field::PREFIX]) {
            prefix if is_ustar && !prefix.is_empty() => [prefix, b"/", name].concat(),
            _ => name.to_vec(),
        }
    }
    pub fn link_name(&self) -> Vec<u8> {
        text(&self.0[field::LINK_NAME]).to_vec()
    }
    pub fn mode(&self) -> Option<i64> {
        number(&self.0[field::MODE])
    }
    pub fn uid(&self) -> Option<i64> {
        number(&self.0[field::UID])
    }
    pub fn gid(&self) -> Option<i64> {
        number(&self.0[field::GID])
    }
    pub fn size(&self) -> Option<i64> {
        number(&self.0[field::SIZE])
    }
    pub fn mtime(&self) -> Option<i64> {
        number(&self.0[field::MTIME])
    }
    pub fn device(&self) -> (Option<i64>, Option<i64>) {
        (number(&self.0[field::DEV_MAJOR]), number(&self.0[field::DEV_MINOR]))
    }

    /// GNU: size of the file, the pairs, and whether a block with more follows.
    pub fn sparse(&self) -> (Option<i64>, Vec<(i64, i64)>, bool) {
        (
            number(&self.0[field::SPARSE_REAL_SIZE]),
            pairs(&self.0[field::SPARSE]),
            self.0[field::SPARSE_IS_EXTENDED] != 0,
        )
    }
}

/// The pairs of a block that continues a sparse header, and whether another follows.
pub(super) fn more_sparse(block: &[u8; BLOCK_BYTES]) -> (Vec<(i64, i64)>, bool) {
    (pairs(&block[field::MORE_SPARSE]), block[field::MORE_IS_EXTENDED] != 0)
}

fn pairs(bytes: &[u8]) -> Vec<(i64, i64)> {
    let pairs = bytes.chunks_exact(24).map(|pair| {
        let (offset, len) = pair.split_at(12);
        (number(offset).unwrap_or(-1), number(len).unwrap_or(-1), pair[0] == 0)
    });
    pairs
        .take_while(|(_, _, is_empty)| !is_empty)
        .map(|(offset, len, _)| (offset, len))
        .collect()
}

/// A header that is written. Names longer than their fields are cut: an extended header has them.
pub(super) struct HeaderOut<'h> {
    pub name: &'h [u8],
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: u64,
    pub kind: u8,
    pub link: &'h [u8],
    pub device: (u32, u32),
}

impl HeaderOut<'_> {
    /// Bytes of a name that need no extended header.
    pub const NAME_BYTES: usize = 100;

    pub fn block(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut put = |at: Range<usize>, bytes: &[u8]| {
            let len = bytes.len().min(at.len());
            block[at.start..at.start + len].copy_from_slice(&bytes[..len]);
        };
        let octal = |value: u64, digits: usize| format!("{value:0digits$o}\0").into_bytes();
        put(field::NAME, self.name);
        put(field::MODE, &octal(self.mode.into(), 7));
        put(field::UID, &octal(self.uid.into(), 7));
        put(field::GID, &octal(self.gid.into(), 7));
        put(field::SIZE, &octal(self.size, 11));
        put(field::MTIME, &octal(self.mtime, 11));
        put(field::TYPE..field::TYPE + 1, &[self.kind]);
        put(field::LINK_NAME, self.link);
        put(field::MAGIC, b"ustar\0");
        put(field::MAGIC.end..field::MAGIC.end + 2, b"00");
        put(field::DEV_MAJOR, &octal(self.device.0.into(), 7));
        put(field::DEV_MINOR, &octal(self.device.1.into(), 7));
        put(field::CHECKSUM, b"        ");
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        let sum = format!("{sum:06o}\0 ");
        block[field::CHECKSUM].copy_from_slice(sum.as_bytes());
        block
    }
}

fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// Octal digits between spaces and zeros, or GNU's binary form. `None`: neither, or beyond 63 bits.
fn number(field: &[u8]) -> Option<i64> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // Two's complement over all bytes, without the bit that marks the form.
        let top = i128::from(first & 0x3f) - if first & 0x40 != 0 { 0x40 } else { 0 };
        let value = rest
            .iter()
            .try_fold(top, |value, byte| value.checked_mul(256)?.checked_add((*byte).into()));
        return i64::try_from(value?).ok();
    }
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add((digit - b'0').into()),
        _ => None,
    })
}

/// Decimal digits, perhaps with a sign, as extended headers have them.
pub(super) fn decimal(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"00006x4\0"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\x01\0\0\0"), Some(1 << 24));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(number(b"\x80\0\0\0\xff\0\0\0\0\0\0\0"), None, "beyond 63 bits");
        assert_eq!(number(b"777777777777"), Some(0o777_777_777_777));
    }
}
