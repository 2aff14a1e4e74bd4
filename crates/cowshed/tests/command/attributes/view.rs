//! Two views of the same attributes: what the kernel gives without asking, and what the file system
//! says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use rustix::io::Errno;

use crate::extents::Dice;

/// An attribute that can be asked for by itself.
#[derive(Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    mask: StatxFlags,
    of: fn(&Statx) -> (i64, i64),
}

fn time(time: rustix::fs::StatxTimestamp) -> (i64, i64) {
    (time.tv_sec, i64::from(time.tv_nsec))
}

pub const FIELDS: [Field; 10] = [
    Field {
        name: "mode",
        mask: StatxFlags::MODE,
        of: |s| (s.stx_mode.into(), 0),
    },
    Field {
        name: "uid",
        mask: StatxFlags::UID,
        of: |s| (s.stx_uid.into(), 0),
    },
    Field {
        name: "gid",
        mask: StatxFlags::GID,
        of: |s| (s.stx_gid.into(), 0),
    },
    Field {
        name: "nlink",
        mask: StatxFlags::NLINK,
        of: |s| (s.stx_nlink.into(), 0),
    },
    Field {
        name: "size",
        mask: StatxFlags::SIZE,
        of: |s| (s.stx_size.cast_signed(), 0),
    },
    Field {
        name: "blocks",
        mask: StatxFlags::BLOCKS,
        of: |s| (s.stx_blocks.cast_signed(), 0),
    },
    Field {
        name: "atime",
        mask: StatxFlags::ATIME,
        of: |s| time(s.stx_atime),
    },
    Field {
        name: "mtime",
        mask: StatxFlags::MTIME,
        of: |s| time(s.stx_mtime),
    },
    Field {
        name: "ctime",
        mask: StatxFlags::CTIME,
        of: |s| time(s.stx_ctime),
    },
    Field {
        name: "btime",
        mask: StatxFlags::BTIME,
        of: |s| time(s.stx_btime),
    },
];

/// `None`: there is no such name.
fn statx(path: &Path, flags: AtFlags, mask: StatxFlags) -> Option<Statx> {
    match rustix::fs::statx(CWD, path, flags | AtFlags::SYMLINK_NOFOLLOW, mask) {
        Ok(stat) => Some(stat),
        Err(Errno::NOENT | Errno::NOTDIR) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// The field as the kernel gives it: from its cache if it takes the field there for valid. Only
/// this one is asked for, because the kernel fetches all where it knows one to be old.
pub fn known(path: &Path, field: &Field) -> Option<(i64, i64)> {
    Some((field.of)(&statx(path, AtFlags::empty(), field.mask)?))
}

/// All fields as the file system has them, which the kernel knows then.
pub fn fresh(path: &Path) -> Option<Vec<(i64, i64)>> {
    let stat = statx(path, AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL)?;
    Some(FIELDS.iter().map(|field| (field.of)(&stat)).collect())
}

/// A directory and all that is below it.
pub fn paths_below(root: &Path) -> Vec<PathBuf> {
    let mut paths = vec![root.to_owned()];
    let mut at = 0;
    while let Some(path) = paths.get(at).cloned() {
        at += 1;
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            let mut below: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
            below.sort();
            paths.extend(below);
        }
    }
    paths
}

/// All fields, and the extended attributes that have to do with permissions.
pub type Views = BTreeMap<PathBuf, (Vec<(i64, i64)>, Vec<Option<Vec<u8>>>)>;

const XATTRS: [&str; 4] = [
    "system.posix_acl_access",
    "system.posix_acl_default",
    "security.capability",
    "user.note",
];

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

pub fn fresh_views(paths: &[PathBuf]) -> Views {
    let view = |path: &PathBuf| {
        let xattrs = XATTRS.iter().map(|name| xattr(path, name)).collect();
        Some((path.clone(), (fresh(path)?, xattrs)))
    };
    paths.iter().filter_map(view).collect()
}

/// What differs between two views, in words.
pub fn differences(then: &Views, now: &Views) -> Vec<String> {
    let mut found = Vec::new();
    for path in then.keys().chain(now.keys().filter(|path| !then.contains_key(*path))) {
        let (Some(a), Some(b)) = (then.get(path), now.get(path)) else {
            found.push(format!("{}: only one has it", path.display()));
            continue;
        };
        for (at, field) in FIELDS.iter().enumerate() {
            let (a, b) = (a.0[at], b.0[at]);
            if a != b {
                found.push(format!("{}: {} {a:?} and {b:?}", path.display(), field.name));
            }
        }
        if a.1 != b.1 {
            found.push(format!("{}: {:?} and {:?}", path.display(), a.1, b.1));
        }
    }
    found
}

/// Asks for each field of each path, in an order by chance, and finds those that the kernel has
/// wrong. The paths are given: listing a directory would have the kernel fetch the attributes of
/// what is in it.
pub fn stale(paths: &[PathBuf], dice: &mut Dice) -> Vec<String> {
    let mut found = Vec::new();
    for path in paths {
        let mut order: Vec<usize> = (0..FIELDS.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let seen: Vec<_> = order.iter().map(|at| (*at, known(path, &FIELDS[*at]))).collect();
        let Some(is) = fresh(path) else { continue };
        for (at, value) in seen {
            if value != Some(is[at]) {
                let name = FIELDS[at].name;
                found.push(format!(
                    "{}: {name} is {:?}, known is {value:?}",
                    path.display(),
                    is[at]
                ));
            }
        }
    }
    found
}
