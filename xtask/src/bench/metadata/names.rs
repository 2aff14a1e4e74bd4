//! One call on many names: each line of it with a number of callers, each in a directory of its
//! own.

use anyhow::{Context as _, Result, ensure};

use super::Bench;
use super::callers;
use super::calls::{self, Dir, SMALL_BYTES};
use super::column::Place;
use super::results::{Key, Kind};

type Call = fn(&Dir, usize) -> Result<()>;

pub struct Line {
    pub name: &'static str,
    /// Calls of all callers together, at scale 1.
    full: u64,
    /// Is the volume mounted anew before, so that nothing is cached?
    is_cold: bool,
    call: Call,
    /// Judges what so many calls have left in a caller's directory, outside of the clock.
    check: Call,
}

impl Line {
    /// A side without extended attributes leaves it out.
    fn is_of_xattrs(&self) -> bool {
        self.name.ends_with("xattr")
    }
}

const fn warm(name: &'static str, full: u64, call: Call, check: Call) -> Line {
    Line {
        name,
        full,
        is_cold: false,
        call,
        check,
    }
}

const fn cold(name: &'static str, full: u64, call: Call, check: Call) -> Line {
    Line {
        is_cold: true,
        ..warm(name, full, call, check)
    }
}

/// At scale 1. No line touches more files than are created.
const FILES: u64 = 100_000;
const FEWER: u64 = 50_000;

/// In this order: each line finds what those before it left.
pub const LINES: [Line; 18] = [
    warm("create + close", FILES, calls::create, |dir, count| {
        dir.expect_count(b'f', count)?;
        sampled(count, |n| calls::stat(dir, n))
    }),
    warm("stat, warm", FILES, calls::stat, |_, _| Ok(())),
    cold("stat, cold", FILES, calls::stat, |_, _| Ok(())),
    warm("chmod", FEWER, calls::chmod, |dir, count| {
        sampled(count, |n| {
            let mode = dir.stat(b'f', n)?.st_mode & 0o777;
            ensure!(mode == 0o600, "mode {mode:o}");
            Ok(())
        })
    }),
    warm("setxattr", FEWER, calls::set_xattr, |dir, count| {
        sampled(count, |n| calls::get_xattr(dir, n))
    }),
    warm("getxattr", FEWER, calls::get_xattr, |_, _| Ok(())),
    warm("link", FEWER, calls::link, |dir, count| {
        dir.expect_count(b'l', count)?;
        sampled(count, |n| {
            ensure!(dir.stat(b'f', n)?.st_nlink == 2, "a linked file has not two names");
            Ok(())
        })
    }),
    warm("rename", FEWER, calls::rename, |dir, count| {
        dir.expect_count(b'l', 0)?;
        dir.expect_count(b'r', count)
    }),
    warm("unlink", FEWER, calls::unlink_renamed, |dir, _| {
        dir.expect_count(b'r', 0)
    }),
    warm("symlink", FEWER, calls::symlink, |dir, count| {
        dir.expect_count(b's', count)
    }),
    warm("readlink, warm", FEWER, calls::readlink, |_, _| Ok(())),
    warm("mkdir", FEWER, calls::mkdir, |dir, count| dir.expect_count(b'd', count)),
    warm("rmdir", FEWER, calls::rmdir, |dir, _| dir.expect_count(b'd', 0)),
    warm("4 KiB file written", FEWER, calls::write_small, |dir, count| {
        dir.expect_count(b'w', count)?;
        sampled(count, |n| {
            let size = dir.stat(b'w', n)?.st_size;
            ensure!(size == SMALL_BYTES as i64, "size {size}");
            calls::read_small(dir, n)
        })
    }),
    warm("4 KiB file read, warm", FEWER, calls::read_small, |_, _| Ok(())),
    cold("4 KiB file read, cold", FEWER, calls::read_small, |_, _| Ok(())),
    cold("readlink, cold", FEWER, calls::readlink, |_, _| Ok(())),
    cold("unlink, cold", FILES, calls::unlink, |dir, _| dir.expect_count(b'f', 0)),
];

/// The first, the last and some between.
fn sampled(count: usize, check: impl Fn(usize) -> Result<()>) -> Result<()> {
    const SOME: usize = 7;
    let step = (count / SOME).max(1);
    let chosen = (0..count).step_by(step).chain(count.checked_sub(1));
    chosen
        .into_iter()
        .try_for_each(|n| check(n).with_context(|| format!("checking number {n}")))
}

pub fn run(bench: &mut Bench<'_>, place: &mut Place, callers: usize) -> Result<()> {
    let files = bench.args.count(FILES, callers);
    let open = |place: &Place| -> Result<Vec<Dir>> {
        let top = place.mountpoint();
        (0..callers)
            .map(|caller| Dir::open(&top.join(format!("caller{caller}")), files))
            .collect()
    };
    let mut dirs = open(place)?;
    let has_xattrs = bench.column.has_xattrs();
    for line in LINES.iter().filter(|line| has_xattrs || !line.is_of_xattrs()) {
        if line.is_cold {
            dirs.clear();
            place.remount()?;
            dirs = open(place)?;
        }
        let count = bench.args.count(line.full, callers);
        let timed = callers::run(callers, count, |caller, n| (line.call)(&dirs[caller], n));
        let sample = timed.with_context(|| line.name)?.sample();
        for dir in &dirs {
            (line.check)(dir, count).with_context(|| format!("after {}", line.name))?;
        }
        bench.sync(place)?;
        bench.record(&Key::new(Kind::Names, line.name, callers), sample);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_both_ends() {
        for count in [1, 2, 20, 21] {
            let seen = std::cell::RefCell::new(Vec::new());
            let see = |n| {
                seen.borrow_mut().push(n);
                Ok(())
            };
            sampled(count, see).unwrap();
            let seen = seen.into_inner();
            assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&(count - 1))));
        }
    }

    #[test]
    fn no_line_needs_more_files_than_there_are() {
        assert!(LINES.iter().all(|line| line.full <= LINES[0].full));
    }
}
