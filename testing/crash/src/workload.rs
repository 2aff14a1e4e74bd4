//! Operations chosen by seed, on a small set of names so that they meet each other.

use cowshed_device_sim::Rng;
use cowshed_model::script::{Data, Op, Prealloc};
use cowshed_model::tree::NOCOW;
use cowshed_vfs::Error;

use crate::draw::{FILE_BYTES_MAX, clone_range, dedupe, defrag, dir_path, group, len, path, swap, tmpfile, write_sync};
use crate::habits;
use crate::links;

/// `FS_COMPR_FL`.
const COMPR: u32 = 0x4;

/// What a run is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All operations, few syncs.
    Everything,
    /// Mostly what fsync was asked about before: see [`crate::habits`].
    Syncs,
    /// Many names of few files: see [`crate::links`].
    Links,
}

/// Makes `count` operations, the directories first.
pub fn choose(rng: &mut Rng, mix: Mix, count: usize) -> Vec<Op> {
    let mut ops: Vec<Op> = ["p", "q", "p/r"].map(|path| Op::Mkdir { path: path.into() }).into();
    if mix == Mix::Links {
        ops.extend(links::choose(rng, count));
    }
    while ops.len() < count {
        if mix == Mix::Syncs && !rng.one_in(4) {
            ops.extend(habits::one(rng));
        } else if rng.one_in(12) {
            ops.extend(replace(rng));
        } else {
            let op = choose_one(rng);
            // A sync of everything ends what a log is for.
            if mix == Mix::Everything || op != Op::Sync || rng.one_in(2) {
                ops.push(op);
            }
        }
    }
    ops.push(Op::Sync);
    ops
}

/// The atomic replace: a temporary file, written, perhaps synced, renamed over the other.
fn replace(rng: &mut Rng) -> Vec<Op> {
    let path = path(rng);
    let temporary = format!("{path}.tmp");
    let (len, fill) = (len(rng) as usize, rng.next_u64());
    let write = Op::write(temporary.clone(), 0, len, fill);
    let fsync = Op::fsync(temporary.clone());
    let rename = Op::rename(temporary, path);
    if rng.one_in(2) {
        vec![write, fsync, rename]
    } else {
        vec![write, rename]
    }
}

fn choose_one(rng: &mut Rng) -> Op {
    let fill = rng.next_u64();
    match rng.below(56) {
        47 => Op::fdatasync(path(rng)),
        48 | 49 => {
            let path = path(rng);
            write_sync(rng, path)
        }
        50 | 51 => {
            let to = path(rng);
            tmpfile(rng, to)
        }
        52 => dedupe(rng),
        53..=55 => {
            let path = path(rng);
            defrag(rng, path)
        }
        0..=9 => Op::write(
            path(rng),
            if rng.one_in(2) {
                0
            } else {
                rng.below(FILE_BYTES_MAX / 2)
            },
            len(rng) as usize,
            fill,
        ),
        10 | 11 => Op::truncate(path(rng), rng.below(FILE_BYTES_MAX / 2)),
        12 => Op::Fallocate {
            path: path(rng),
            offset: rng.below(16) << 12,
            len: len(rng),
            how: if rng.one_in(3) {
                Prealloc::KeepSize
            } else {
                Prealloc::Extend
            },
        },
        36 => Op::Fallocate {
            path: path(rng),
            offset: rng.below(32 << 12),
            len: len(rng),
            how: Prealloc::Zero,
        },
        37..=39 => clone_range(rng),
        40 | 41 => swap(rng),
        42 | 43 => group(rng),
        44 => Op::flags(
            path(rng),
            *[0, NOCOW, NOCOW, COMPR, COMPR].get(rng.index(5)).unwrap_or(&0),
        ),
        13 => Op::Fallocate {
            path: path(rng),
            offset: rng.below(32 << 12),
            len: len(rng),
            how: Prealloc::Punch,
        },
        14 => Op::copy(path(rng), 0, path(rng), 0, (1 + rng.below(16)) << 12),
        15..=17 => Op::rename(path(rng), path(rng)),
        18 => Op::exchange(path(rng), path(rng)),
        19 => Op::rename(dir_path(rng), dir_path(rng)),
        20 | 21 => Op::link(path(rng), path(rng)),
        22..=24 => Op::unlink(path(rng)),
        25 => Op::Symlink {
            path: path(rng),
            target: format!("target-{fill}"),
        },
        26 => Op::mkdir(dir_path(rng)),
        27 => Op::rmdir(dir_path(rng)),
        28 => Op::chmod(path(rng), rng.below(0o1000) as u32),
        29 | 30 => Op::set_xattr(
            path(rng),
            format!("user.{}", rng.below(4)),
            Data::Fill {
                len: rng.below(600) as usize,
                fill,
            },
        ),
        31 => Op::remove_xattr(path(rng), format!("user.{}", rng.below(4))),
        32 | 33 => Op::fsync(path(rng)),
        34 => Op::fsync(dir_path(rng)),
        _ => Op::Sync,
    }
}

/// Outcomes that operations on random names may have on a healthy device; all else is a fault.
pub fn is_outcome(error: Error) -> bool {
    matches!(
        error,
        Error::NotFound
            | Error::Exists
            | Error::CrossDevice
            | Error::IsDirectory
            | Error::NotDirectory
            | Error::NotEmpty
            | Error::Invalid
            | Error::NotPermitted
            | Error::NoData
            | Error::TooManySymlinks
            | Error::NotSupported
            | Error::BadHandle
            | Error::Busy
            // Of names that share a hash.
            | Error::Overflow
    )
}
