//! Values as people read them: modes, times, names of users; and the same as JSON. Lines for the
//! terminal, which is never a reason to fail.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cowshed::{FileKind, Metadata, Timestamp};
use serde_json::{Value, json};

use crate::local_time::local;

/// A line on the standard output. The work counts, not the reader of the line: it may be gone.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// As [`say`], without the end of the line.
pub fn say_part(text: impl Display) {
    let mut out = io::stdout();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// A line on the standard error, whose reader may be gone, too.
pub fn warn(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// As [`warn`], without the end of the line.
pub fn warn_part(text: impl Display) {
    let _ = write!(io::stderr(), "{text}");
}

pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::BlockDevice => "block special file",
        FileKind::CharDevice => "character special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// A mode as `ls -l` shows it.
pub fn mode_text(mode: u32) -> String {
    let kind = match FileKind::from_mode(mode) {
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::Regular) | None => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A time in UTC; to the minute, or to the nanosecond.
pub fn time_text(time: Timestamp, full: bool) -> String {
    const DAY_S: i64 = 86_400;
    let (year, month, day) = civil_day(time.secs.div_euclid(DAY_S));
    let second = time.secs.rem_euclid(DAY_S);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}");
    if full {
        text += &format!(":{second:02}.{:09}", time.nanos);
    }
    text
}

/// A time in the time zone of the user, to the second; as `with_zone` also where that is.
pub fn local_time_text(secs: i64, with_zone: bool) -> String {
    let local = local(secs);
    let mut text = time_text(Timestamp::new(local.shown_secs, 0), true);
    text.truncate(text.len().saturating_sub(".000000000".len()));
    if with_zone {
        let minutes = local.offset_secs.abs() / 60;
        let sign = if local.offset_secs < 0 { '-' } else { '+' };
        text += &format!(" {sign}{:02}{:02}", minutes / 60, minutes % 60);
    }
    text
}

/// Year, month and day of a day counted from 1970-01-01: eras of 400 years, and years that begin in
/// March.
fn civil_day(day: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 146_097;
    /// From March 1 of year 0 to 1970.
    const SHIFT_DAYS: i64 = 719_468;
    let day = day + SHIFT_DAYS;
    let era = day.div_euclid(ERA_DAYS);
    let of_era = day.rem_euclid(ERA_DAYS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_month)
}

/// A path for a terminal: what is no printable text comes escaped.
pub fn printable(path: impl AsRef<OsStr>) -> String {
    let mut text = String::new();
    for chunk in path.as_ref().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// The names of users and groups on this machine.
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub fn load() -> Self {
        Self {
            users: table("/etc/passwd"),
            groups: table("/etc/group"),
        }
    }
    pub fn user(&self, id: u32) -> String {
        self.users.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
    pub fn group(&self, id: u32) -> String {
        self.groups.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

/// Number and name of each line of a table such as /etc/passwd.
fn table(path: &str) -> HashMap<u32, String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(line).collect()
}

/// Three digits at most, as compsize and `ls -h` print sizes.
pub fn size_text(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    for unit in ["K", "M", "G", "T", "P"] {
        if value < 10.0 {
            return format!("{value:.1}{unit}");
        }
        if value < 1024.0 {
            return format!("{value:.0}{unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.0}E")
}

/// Text, or where it is none: an object that says the bytes in hexadecimal.
pub fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": bytes.iter().map(|b| format!("{b:02x}")).collect::<String>() }),
    }
}

fn time_json(time: Timestamp) -> Value {
    json!({ "seconds": time.secs, "nanoseconds": time.nanos, "text": time_text(time, true) })
}

pub fn metadata_json(path: &Path, meta: &Metadata, target: Option<&Path>, xattrs: &[(String, Vec<u8>)]) -> Value {
    let [accessed, modified, changed, born] = meta.timestamps().map(time_json);
    let (major, minor) = meta.device();
    let xattrs: serde_json::Map<String, Value> = xattrs
        .iter()
        .map(|(name, value)| (name.clone(), bytes_json(value)))
        .collect();
    let mut value = json!({
        "path": bytes_json(path.as_os_str().as_bytes()),
        "type": kind_name(meta.kind()),
        "inode": meta.ino(),
        "mode": format!("{:04o}", meta.mode() & 0o7777),
        "nlink": meta.nlink(),
        "uid": meta.uid(),
        "gid": meta.gid(),
        "size": meta.len(),
        "blocks_512": meta.blocks(),
        "accessed": accessed,
        "modified": modified,
        "changed": changed,
        "born": born,
    });
    if let Some(target) = target {
        value["target"] = bytes_json(target.as_os_str().as_bytes());
    }
    if matches!(meta.kind(), FileKind::BlockDevice | FileKind::CharDevice) {
        value["device"] = json!({ "major": major, "minor": minor });
    }
    if !xattrs.is_empty() {
        value["xattrs"] = xattrs.into();
    }
    value
}

/// Whether a command failed because the reader of its output is gone.
pub fn is_broken_pipe(failed: &anyhow::Error) -> bool {
    let is_broken = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    failed.chain().filter_map(|cause| cause.downcast_ref()).any(is_broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_few_digits() {
        let shown = [0, 1023, 1024, 10 << 10, (1 << 20) - 1, 4 << 20, 128 << 20, 3 << 40].map(size_text);
        assert_eq!(shown, ["0B", "1023B", "1.0K", "10K", "1024K", "4.0M", "128M", "3.0T"]);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (-1, "1969-12-31 23:59"),
            (4_102_444_800, "2100-01-01 00:00"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(time_text(Timestamp::new(secs, 0), false), text);
        }
        assert_eq!(time_text(Timestamp::new(61, 5), true), "1970-01-01 00:01:01.000000005");
        time_text(Timestamp::new(i64::MIN, 0), true);
        time_text(Timestamp::new(i64::MAX, 0), true);
    }

    #[test]
    fn modes_and_names_read_as_in_ls() {
        assert_eq!(mode_text(0o100644), "-rw-r--r--");
        assert_eq!(mode_text(0o041777), "drwxrwxrwt");
        assert_eq!(mode_text(0o104711), "-rws--x--x");
        assert_eq!(mode_text(0o106644), "-rwSr-Sr--");
        assert_eq!(printable(OsStr::from_bytes(b"a\nb\xff\xc3\xa4")), "a\\nb\\xff\u{e4}");
    }
}
