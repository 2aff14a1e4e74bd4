//! Sizes as people write them on a command line (`16384`, `16k`, `4G`), with the suffixes of
//! mkfs.btrfs.

/// A size that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The text is no number with a unit.
    #[error("'{0}' is not a size: expected a number and perhaps one of the suffixes b, k, m, g, t, p, e")]
    Malformed(String),
    /// The number of bytes does not fit 64 bits.
    #[error("size '{0}' is larger than 2^64-1 bytes")]
    Overflow(String),
}

/// Reads a number of bytes: a whole number and at most one suffix, `b`, `k`, `m`, `g`, `t`, `p` or
/// `e`, in either case, each a power of 1024 (`mkfs.btrfs(8)`, `-b`).
pub fn parse_size_bytes(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.to_owned());
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err(malformed());
    }
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return Err(malformed()),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| SizeError::Overflow(text.to_owned()))
}

/// A number of bytes for people, as mkfs.btrfs prints it: `8.00MiB`.
pub fn pretty_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 2)) > 0 {
        unit += 1;
    }
    format!(
        "{:.2}{}",
        bytes as f64 / (1_u64 << (10 * (unit + 1))) as f64,
        UNITS[unit]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_is_a_power_of_1024() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("12b", 12),
            ("16k", 16 << 10),
            ("16K", 16 << 10),
            ("3m", 3 << 20),
            ("5G", 5 << 30),
            ("2t", 2 << 40),
            ("1P", 1 << 50),
            ("15e", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_size_is_refused() {
        for text in ["", "k", "-1", "+1", "1.5g", "1kb", "1 k", "0x10", "1kk", "k1", "1µ"] {
            assert_eq!(parse_size_bytes(text), Err(SizeError::Malformed(text.into())), "{text}");
        }
        for text in ["16e", "18446744073709551616", "99999999999999999999k"] {
            assert_eq!(parse_size_bytes(text), Err(SizeError::Overflow(text.into())), "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_with_units() {
        assert_eq!(pretty_bytes(0), "0B");
        assert_eq!(pretty_bytes(1023), "1023B");
        assert_eq!(pretty_bytes(8 << 20), "8.00MiB");
        assert_eq!(pretty_bytes(53_673_984), "51.19MiB");
        assert_eq!(pretty_bytes(1 << 30), "1.00GiB");
        assert_eq!(pretty_bytes(u64::MAX), "16.00EiB");
    }
}
