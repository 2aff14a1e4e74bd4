//! Contents in short: `a8k+.4k+b100` is 8192 letters a, a hole or zeros of 4096 bytes and 100
//! letters b; `3*(a4k+.4k)` repeats; `-` is nothing.

use anyhow::{Context as _, Result, bail, ensure};

/// No case needs more.
const BYTES_MAX: usize = 64 << 20;

/// A number of bytes: `100`, `8k`, `1m`.
pub fn count(text: &str) -> Result<u64> {
    let (digits, unit) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('m').map_or((text, 1), |digits| (digits, 1_u64 << 20)),
    };
    let number: u64 = digits.parse().with_context(|| format!("`{text}` is no number"))?;
    Ok(number * unit)
}

/// The bytes that the short form stands for.
pub fn bytes(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if text != "-" {
        let rest = sum(text, &mut out)?;
        ensure!(rest.is_empty(), "`{rest}` is left of content `{text}`");
    }
    ensure!(out.len() <= BYTES_MAX, "content `{text}` is too long");
    Ok(out)
}

fn sum<'t>(mut text: &'t str, out: &mut Vec<u8>) -> Result<&'t str> {
    loop {
        text = term(text, out)?;
        match text.strip_prefix('+') {
            Some(rest) => text = rest,
            None => return Ok(text),
        }
    }
}

fn term<'t>(text: &'t str, out: &mut Vec<u8>) -> Result<&'t str> {
    if let Some((times, rest)) = text.split_once("*(")
        && let Ok(times) = times.parse::<usize>()
    {
        let mut once = Vec::new();
        let rest = sum(rest, &mut once)?;
        ensure!(once.len() * times <= BYTES_MAX, "too much repetition");
        out.extend(once.repeat(times));
        return rest.strip_prefix(')').context("a `)` is missing");
    }
    let Some(letter) = text.bytes().next() else {
        bail!("content ends early")
    };
    ensure!(
        letter == b'.' || letter.is_ascii_lowercase(),
        "`{text}` begins with no letter"
    );
    let rest = &text[1..];
    let end = rest.find(['+', ')']).unwrap_or(rest.len());
    let len = count(&rest[..end])? as usize;
    ensure!(len <= BYTES_MAX, "too long a run");
    out.resize(out.len() + len, if letter == b'.' { 0 } else { letter });
    Ok(&rest[end..])
}

/// The short form of some bytes, for messages: of long ones the beginning.
pub fn describe(content: &[u8]) -> String {
    const RUNS_MAX: usize = 12;
    short(content, RUNS_MAX)
}

/// The short form; `...` stands for what comes after so many runs of one byte.
pub(super) fn short(content: &[u8], runs_max: usize) -> String {
    let mut runs: Vec<(u8, usize)> = Vec::new();
    for &byte in content {
        match runs.last_mut() {
            Some((last, len)) if *last == byte => *len += 1,
            _ => runs.push((byte, 1)),
        }
    }
    if runs.is_empty() {
        return "-".into();
    }
    let show = |&(byte, len): &(u8, usize)| {
        let letter = if byte == 0 { '.' } else { char::from(byte) };
        if len % 1024 == 0 {
            format!("{letter}{}k", len / 1024)
        } else {
            format!("{letter}{len}")
        }
    };
    let mut text = runs.iter().take(runs_max).map(show).collect::<Vec<_>>().join("+");
    if runs.len() > runs_max {
        text.push_str("+...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, describe};

    #[test]
    fn contents_read_and_print() {
        assert_eq!(count("8k").unwrap(), 8192);
        assert_eq!(bytes("-").unwrap(), b"");
        assert_eq!(bytes("a2+.1+b1").unwrap(), b"aa\0b");
        assert_eq!(bytes("x1+2*(a1+.1)+b1").unwrap(), b"xa\0a\0b");
        assert_eq!(describe(&bytes("a8k+.4k+b100").unwrap()), "a8k+.4k+b100");
        assert_eq!(describe(b""), "-");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a", "8k", "a8k+", "2*(a1", "a1)", "A1", "a9999999999"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
