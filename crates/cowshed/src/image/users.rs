//! Translation of users and groups between sources and image.

use std::path::Path;

use super::error::{Error, Result};

/// Consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    image: u32,
    source: u32,
    count: u32,
}

/// Which user or group of the sources is which one of the image.
///
/// ```
/// let map: cowshed::image::UserMap = "uid 0 1000 1\nuid 1 100000 65536\ngid 0 1000 1\n".parse()?;
/// # Ok::<(), cowshed::image::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMap {
    users: Vec<Range>,
    groups: Vec<Range>,
}

impl std::str::FromStr for UserMap {
    type Err = Error;

    /// Lines of `uid` or `gid`, the first number in the image, the first number in the sources, and
    /// how many follow: as in `/proc/PID/uid_map`. `#` begins a comment.
    fn from_str(text: &str) -> Result<Self> {
        let mut map = Self::default();
        for (line, number) in text.lines().zip(1..) {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let wrong = || Error::Option(format!("line {number}: '{line}' is not uid|gid IMAGE SOURCE COUNT"));
            let [kind, numbers @ ..] = &words[..] else { continue };
            let numbers: Option<Vec<u32>> = numbers.iter().map(|word| word.parse().ok()).collect();
            let range = match numbers.as_deref() {
                Some(&[image, source, count]) => Range { image, source, count },
                _ => return Err(wrong()),
            };
            match *kind {
                "uid" => map.users.push(range),
                "gid" => map.groups.push(range),
                _ => return Err(wrong()),
            }
        }
        Ok(map)
    }
}

impl UserMap {
    /// As containers without root have it: the caller is root in the image, and its subordinate
    /// users and groups (subuid(5), subgid(5)) follow from 1. Errors: the files cannot be read.
    pub fn of_caller() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let name = name_of(uid)?;
        let range = |file: &str, own: u32| -> Result<Vec<Range>> {
            let mut ranges = vec![Range {
                image: 0,
                source: own,
                count: 1,
            }];
            let mut next = 1_u32;
            for line in read(file)?.lines() {
                let mut words = line.split(':');
                if words
                    .next()
                    .is_none_or(|owner| owner != name && owner != uid.to_string())
                {
                    continue;
                }
                let numbers = (words.next().map(str::parse), words.next().map(str::parse));
                if let (Some(Ok(source)), Some(Ok(count))) = numbers {
                    ranges.push(Range {
                        image: next,
                        source,
                        count,
                    });
                    next = next.saturating_add(count);
                }
            }
            Ok(ranges)
        };
        Ok(Self {
            users: range("/etc/subuid", uid)?,
            groups: range("/etc/subgid", rustix::process::getegid().as_raw())?,
        })
    }

    pub(super) fn uid(&self, id: u32) -> Option<u32> {
        translate(&self.users, id)
    }

    pub(super) fn gid(&self, id: u32) -> Option<u32> {
        translate(&self.groups, id)
    }
}

fn translate(ranges: &[Range], id: u32) -> Option<u32> {
    ranges.iter().find_map(|range| {
        let offset = id.checked_sub(range.source).filter(|offset| *offset < range.count)?;
        range.image.checked_add(offset)
    })
}

/// The user's name; its number where it has none.
fn name_of(uid: u32) -> Result<String> {
    let passwd = read("/etc/passwd")?;
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let own = lines.find(|words| words.get(2).is_some_and(|word| *word == uid.to_string()));
    Ok(own.map_or_else(|| uid.to_string(), |words| words[0].to_owned()))
}

fn read(path: &str) -> Result<String> {
    match std::fs::read_to_string(Path::new(path)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|error| Error::Option(format!("{path}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_translated_by_the_first_range_that_has_them() {
        let map: UserMap = "# root\nuid 0 1000 1\nuid 1 100000 10\n\ngid 5 7 2 # two\n"
            .parse()
            .unwrap();
        assert_eq!(
            [1000, 100_009, 100_010, 0].map(|id| map.uid(id)),
            [Some(0), Some(10), None, None]
        );
        assert_eq!([6, 7, 8, 9].map(|id| map.gid(id)), [None, Some(5), Some(6), None]);
        for wrong in ["uid 1 2", "user 0 0 1", "uid 0 0 -1"] {
            assert!(
                wrong.parse::<UserMap>().unwrap_err().to_string().contains("line 1"),
                "{wrong}"
            );
        }
    }
}
