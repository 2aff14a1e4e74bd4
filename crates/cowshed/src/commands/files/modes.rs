//! Modes, sizes, owners and times as coreutils take them.

use std::str::FromStr;

use cowshed::Timestamp;

use crate::local_time::local;

/// A mode: octal, or clauses such as `u+rwX,go-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    Octal { bits: u32, sets_directory_ids: bool },
    Clauses(Vec<Clause>),
}

/// `WHO` and one `OP PERMS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// Bits of those who are meant; 0: all, without the umask.
    who: u32,
    op: char,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Read, write and search as 0 to 7; `X`; set-id; sticky.
    Letters {
        rwx: u32,
        cond_x: bool,
        set_id: bool,
        sticky: bool,
    },
    /// As the user, group or others have it: the shift of their bits.
    As(u32),
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("invalid mode: '{text}'");
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).map_err(|_| bad())?;
            return match bits <= 0o7777 {
                true => Ok(Self::Octal {
                    bits,
                    sets_directory_ids: text.len() > 4,
                }),
                false => Err(bad()),
            };
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            clauses_of(part, &mut clauses).ok_or_else(bad)?;
        }
        Ok(Self::Clauses(clauses))
    }
}

fn clauses_of(part: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let ops = |c: char| matches!(c, '+' | '-' | '=');
    let start = part.find(ops)?;
    let mut who = 0;
    for c in part[..start].chars() {
        who |= match c {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    let mut rest = &part[start..];
    while let Some(op) = rest.chars().next() {
        let end = rest[1..].find(ops).map_or(rest.len(), |at| at + 1);
        let what = match &rest[1..end] {
            "u" => What::As(6),
            "g" => What::As(3),
            "o" => What::As(0),
            letters => {
                let (mut rwx, mut cond_x, mut set_id, mut sticky) = (0, false, false, false);
                for c in letters.chars() {
                    match c {
                        'r' => rwx |= 4,
                        'w' => rwx |= 2,
                        'x' => rwx |= 1,
                        'X' => cond_x = true,
                        's' => set_id = true,
                        't' => sticky = true,
                        _ => return None,
                    }
                }
                What::Letters {
                    rwx,
                    cond_x,
                    set_id,
                    sticky,
                }
            }
        };
        clauses.push(Clause { who, op, what });
        rest = &rest[end..];
    }
    Some(())
}

impl ModeChange {
    /// The new permission bits of a file that has `old`.
    pub fn apply(&self, old: u32, is_dir: bool, umask: u32) -> u32 {
        match self {
            Self::Octal {
                bits,
                sets_directory_ids,
            } => match is_dir && !sets_directory_ids {
                true => bits | (old & 0o6000),
                false => *bits,
            },
            Self::Clauses(clauses) => clauses
                .iter()
                .fold(old, |perm, clause| clause.apply(perm, is_dir, umask)),
        }
    }
}

impl Clause {
    fn apply(&self, old: u32, is_dir: bool, umask: u32) -> u32 {
        let mut value = match &self.what {
            What::As(shift) => {
                let bits = (old >> shift) & 7;
                bits << 6 | bits << 3 | bits
            }
            What::Letters {
                rwx,
                cond_x,
                set_id,
                sticky,
            } => {
                let x = u32::from(*cond_x && (is_dir || old & 0o111 != 0));
                let bits = rwx | x;
                let ids = if *set_id { 0o6000 } else { 0 };
                bits << 6 | bits << 3 | bits | ids | if *sticky { 0o1000 } else { 0 }
            }
        };
        value &= match self.who {
            0 => !umask,
            who => who,
        };
        match self.op {
            '+' => old | value,
            '-' => old & !value,
            _ => {
                let meant = if self.who == 0 { 0o7777 } else { self.who };
                // The set-id bits of a directory go only where they are named.
                let names_ids = matches!(self.what, What::Letters { set_id: true, .. });
                let kept = match is_dir && !names_ids {
                    true => old & 0o6000,
                    false => 0,
                };
                (old & !meant) | (value & meant) | (kept & meant)
            }
        }
    }
}

/// A number with a unit of 1024 behind.
pub fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `U`, `U:G`, `:G`, `U:`: numbers, or names of this machine.
pub fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let uid = match user {
        "" => None,
        user => Some(id("/etc/passwd", user, 2).ok_or_else(|| format!("invalid user: '{text}'"))?),
    };
    let gid = match group {
        None => None,
        Some("") if user.is_empty() => None,
        // The group that the user has at login.
        Some("") => Some(id("/etc/passwd", user, 3).ok_or_else(|| format!("invalid spec: '{text}'"))?),
        Some(group) => Some(id("/etc/group", group, 2).ok_or_else(|| format!("invalid group: '{text}'"))?),
    };
    Ok((uid, gid))
}

fn id(table: &str, name: &str, field: usize) -> Option<u32> {
    let text = std::fs::read_to_string(table).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(field - 1)?.parse().ok())?
    });
    found.or_else(|| name.parse().ok().filter(|_| field == 2))
}

/// A time as `touch -d` takes it: `@SECONDS[.FRACTION]`, or `YYYY-MM-DD[ HH:MM[:SS[.FRACTION]]]`
/// with `Z` or `+HH:MM` behind, else of this machine's time zone.
pub fn time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Some(number) = text.strip_prefix('@') {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let secs: i64 = whole.parse().ok()?;
        let nanos = nanos(fraction)?;
        return Some(match whole.starts_with('-') && nanos > 0 {
            true => Timestamp::new(secs.checked_sub(1)?, 1_000_000_000 - nanos),
            false => Timestamp::new(secs, nanos),
        });
    }
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, ""));
    let mut date = date.splitn(3, '-');
    let mut next = |digits: usize| {
        let text = date.next()?;
        (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<i64>().ok())?
    };
    let (year, month, day) = (next(4)?, next(2)?, next(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (clock, zone) = match clock.find(['Z', '+', '-']) {
        Some(at) => (clock[..at].trim(), Some(&clock[at..])),
        None => (clock.trim(), None),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.split(':').filter(|part| !part.is_empty()).map(str::parse::<i64>);
    let mut part = |max: i64| match parts.next() {
        None => Some(0),
        Some(value) => value.ok().filter(|value| (0..=max).contains(value)),
    };
    let (hour, minute, second) = (part(23)?, part(59)?, part(60)?);
    let secs = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let offset = match zone {
        Some("Z") => 0,
        Some(zone) => {
            let digits: String = zone[1..].chars().filter(char::is_ascii_digit).collect();
            let number: i64 = digits.parse().ok()?;
            let seconds = match digits.len() {
                1 | 2 => number * 3600,
                4 => number / 100 * 3600 + number % 100 * 60,
                _ => return None,
            };
            if zone.starts_with('-') { -seconds } else { seconds }
        }
        None => local(secs - local(secs).offset_secs).offset_secs,
    };
    Some(Timestamp::new(secs - offset, nanos(fraction)?))
}

fn nanos(fraction: &str) -> Option<u32> {
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    digits.parse().ok()
}

/// Days from 1970-01-01 to a date: years that begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, old: u32, is_dir: bool) -> u32 {
        text.parse::<ModeChange>().unwrap().apply(old, is_dir, 0o022)
    }

    #[test]
    fn modes_change_as_chmod_changes_them() {
        for (text, old, is_dir, new) in [
            ("644", 0o4755, false, 0o644),
            ("755", 0o2700, true, 0o2755),
            ("00755", 0o2700, true, 0o755),
            ("u+x,go=r", 0o600, false, 0o744),
            ("+w", 0o444, false, 0o644),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o644, true, 0o755),
            ("a+X", 0o744, false, 0o755),
            ("g=u", 0o640, false, 0o660),
            ("u+s,+t", 0o755, false, 0o5755),
            ("u=rwx", 0o4600, false, 0o700),
            ("u-rwx+r", 0o700, false, 0o400),
        ] {
            assert_eq!(changed(text, old, is_dir), new, "{text} of {old:o}");
        }
        for bad in ["", "8", "u", "u+y", "77777", "k+x"] {
            assert!(bad.parse::<ModeChange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_and_sizes_read_as_coreutils_read_them() {
        assert_eq!(time("@12.5"), Some(Timestamp::new(12, 500_000_000)));
        assert_eq!(time("@-1.25"), Some(Timestamp::new(-2, 750_000_000)));
        assert_eq!(time("2000-02-29 00:00Z"), Some(Timestamp::new(951_782_400, 0)));
        assert_eq!(
            time("2000-02-29T01:00:00.5+01:00"),
            Some(Timestamp::new(951_782_400, 500_000_000))
        );
        assert_eq!(time("2000-13-01"), None);
        assert_eq!(time("soon"), None);
        assert_eq!(size("12K"), Some(12 << 10));
        assert_eq!(size("1x"), None);
    }
}
