//! The yardstick: what `fs_mark -S 0 -L LOOPS -n FILES -s 0 -t CALLERS -k` does, with a directory
//! for each caller.
//!
//! For each file: mkdir() of the directory (which is there), open() with O_CREAT, a write() of
//! nothing, close(). Names have 40 bytes: eight of a time, eight tildes, 24 random ones.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_device_sim::Rng;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::column::Place;
use super::results::{Key, Kind};
use super::stats::{self, Sample};
use super::{Bench, callers, calls};

pub const NAME: &str = "fs_mark";
/// Where the time in names begins: as in a run of fs_mark, it is the same for all files of a second
/// or more.
const TIME: usize = 0x6b00_0000;

fn name(time: usize, dice: &mut Rng) -> String {
    const RANDOM: usize = 24;
    const LETTERS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut name = format!("{time:08x}~~~~~~~~");
    name.extend((0..RANDOM).map(|_| char::from(LETTERS[dice.index(LETTERS.len())])));
    name
}

struct Dir {
    path: CString,
}

impl Dir {
    fn new(path: &Path) -> Result<Dir> {
        std::fs::create_dir(path)?;
        // fs_mark has the slash, too.
        let path = [path.as_os_str().as_bytes(), b"/"].concat();
        Ok(Dir {
            path: CString::new(path)?,
        })
    }

    fn make_file(&self, name: &str) -> Result<()> {
        match fs::mkdir(&self.path, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => {}
            other => bail!("mkdir of a directory that exists: {other:?}"),
        }
        let path = [self.path.as_bytes(), b"/", name.as_bytes()].concat();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let file = fs::open(&path[..], flags, Mode::from_raw_mode(0o666))?;
        ensure!(rustix::io::write(&file, b"")? == 0, "nothing was written");
        Ok(())
    }
}

pub fn run(bench: &mut Bench<'_>, place: &mut Place, callers: usize) -> Result<()> {
    let (loops, files) = (bench.args.loops, bench.args.fs_mark_files(callers));
    let top = place.mountpoint();
    let path = |caller: usize| top.join(caller.to_string());
    let dirs: Vec<Dir> = (0..callers)
        .map(|caller| Dir::new(&path(caller)))
        .collect::<Result<_>>()?;
    let mut rates = Vec::new();
    for round in 0..loops {
        let timed = callers::run(callers, files, |caller, n| {
            let mut dice = Rng::new(((caller * loops + round) * files + n) as u64);
            dirs[caller].make_file(&name(TIME + round, &mut dice))
        })?;
        rates.push(timed.per_second());
    }
    for caller in 0..callers {
        let (names, _) = calls::list(&path(caller))?;
        ensure!(names == loops * files, "{names} names, not {}", loops * files);
    }
    let (mean, last_over_best) = stats::loops(&rates).context("no loops")?;
    let sample = Sample {
        last_over_best: Some(last_over_best),
        ..Sample::of_value(mean)
    };
    bench.record(&Key::new(Kind::FsMark, NAME, callers), sample);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_look_as_those_of_fs_mark() {
        let name = name(TIME + 1, &mut Rng::new(7));
        assert_eq!((name.len(), &name[..16]), (40, "6b000001~~~~~~~~"));
        assert!(name[16..].bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()));
    }

    #[test]
    fn file_is_made_in_a_directory_that_exists() {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let dir = Dir::new(&scratch.path().join("0")).unwrap();
        dir.make_file("name").unwrap();
        assert!(scratch.path().join("0/name").exists());
        std::fs::remove_dir_all(scratch.path().join("0")).unwrap();
        assert!(dir.make_file("name").is_err());
    }
}
