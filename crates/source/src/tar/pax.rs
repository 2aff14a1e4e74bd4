//! Extended headers of PAX: records of a key and a value.

use super::acl;
use super::header::decimal;
use super::sparse::SparseRecords;
use crate::tree::{Time, Xattr};

/// What extended headers say of an entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    pub path: Option<Vec<u8>>,
    pub link_path: Option<Vec<u8>>,
    pub size: Option<i64>,
    pub uid: Option<i64>,
    pub gid: Option<i64>,
    pub mtime: Option<Time>,
    pub xattrs: Vec<Xattr>,
    pub sparse: SparseRecords,
}

const BAD_ACL: &str = "an access list that is none, or has names that this machine does not know";

impl Records {
    /// Reads the records of a header. Errors: what is wrong.
    pub fn parse(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() && bytes[0] != 0 {
            let (record, rest) = split_record(bytes).ok_or("an extended header that is no list of records")?;
            let eq = record.iter().position(|byte| *byte == b'=');
            let (key, value) = record.split_at(eq.ok_or("a record of an extended header without a key")?);
            self.take(key, &value[1..])?;
            bytes = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let bad = || format!("a value of {} that is none", String::from_utf8_lossy(key));
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link_path = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or_else(bad)?),
            b"uid" => self.uid = Some(decimal(value).ok_or_else(bad)?),
            b"gid" => self.gid = Some(decimal(value).ok_or_else(bad)?),
            b"mtime" => self.mtime = Some(time(value).ok_or_else(bad)?),
            b"SCHILY.acl.access" => self.put_xattr(acl::ACCESS, &acl::from_text(value).ok_or(BAD_ACL)?),
            b"SCHILY.acl.default" => self.put_xattr(acl::DEFAULT, &acl::from_text(value).ok_or(BAD_ACL)?),
            b"RHT.security.selinux" => self.put_xattr(b"security.selinux", value),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.put_xattr(name, value);
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.take(key, value).ok_or_else(bad)?;
                }
            }
        }
        Ok(())
    }

    fn put_xattr(&mut self, name: &[u8], value: &[u8]) {
        self.xattrs.retain(|xattr| *xattr.name != *name);
        self.xattrs.push(Xattr {
            name: name.into(),
            value: value.into(),
        });
    }
}

/// The first record without its length and its newline, and what is behind it.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let len = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
    Some((record, &bytes[len..]))
}

/// Seconds with a fraction, which counts upwards also before 1970.
fn time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nsec: u32 = digits.parse().ok()?;
    Some(match whole.starts_with('-') && nsec > 0 {
        true => Time {
            sec: sec.checked_sub(1)?,
            nsec: 1_000_000_000 - nsec,
        },
        false => Time { sec, nsec },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_split_by_their_lengths() {
        let mut records = Records::default();
        records
            .parse(b"12 path=a=b\n15 mtime=-1.25\n29 SCHILY.xattr.user.a=x\ny\0z\n")
            .unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"a=b"[..]));
        assert_eq!(
            records.mtime,
            Some(Time {
                sec: -2,
                nsec: 750_000_000
            })
        );
        assert_eq!(
            (&*records.xattrs[0].name, &*records.xattrs[0].value),
            (&b"user.a"[..], &b"x\ny\0z"[..])
        );
        for bad in [
            &b"5 path=abc\n"[..],
            b"path",
            b"999 a=b\n",
            b"8 abcde\n",
            b"11 size=1x\n",
            b"-1 a=b\n",
            b"0 a\n",
        ] {
            assert!(Records::default().parse(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
