//! `cowshed-bench-load`: puts one kind of load on a directory with plain system calls, and prints
//! what it took as JSON.
//!
//! One process, one thread (where it does not say `threads`), no cache of its own: what is measured
//! is the file system. `cargo xtask bench` runs it on two mounts in turn.

mod calls;
mod synced;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use cowshed_benches::Measured;
use cowshed_benches::content::{Content, fill_with};
use cowshed_device_sim::Rng;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::{pread, pwrite};

use calls::{BLOCK, buffer, open};

const STREAM_CALL_BYTES: usize = 1 << 20;

#[derive(Parser)]
#[command(about = "Puts one kind of load on a directory and says how long it took")]
struct Args {
    /// Where to work; the load makes `d` and `large` in it
    dir: PathBuf,
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand, Clone, Copy)]
enum Load {
    /// Makes empty files in one directory
    Create { count: u64 },
    /// Asks for the attributes of each of them, by name
    Stat {
        count: u64,
        /// In an order that has nothing to do with that of their making
        #[arg(long)]
        shuffled: bool,
    },
    /// Opens, reads and closes each of them
    ReadFiles {
        count: u64,
        #[arg(long)]
        shuffled: bool,
    },
    /// Makes files of 4 KiB in one directory
    CreateSmall { count: u64 },
    /// Looks for the first hole of the file `extents`
    SeekHole,
    /// Lists their directory
    Readdir,
    /// Lists their directory and asks for each one's attributes, as `ls -l` does
    ReaddirStat,
    /// Removes them
    Unlink {
        count: u64,
        /// Only every n-th
        #[arg(long, default_value_t = 1)]
        every: u64,
    },
    /// Syncs their directory
    SyncDir,
    /// Writes the large file in calls of 1 MiB, and syncs it
    StreamWrite {
        bytes: u64,
        #[arg(long, value_enum, default_value_t = Content::Noise)]
        content: Content,
    },
    /// Reads the large file in calls of 1 MiB
    StreamRead,
    /// Reads blocks of 4 KiB at random places of the large file
    RandomRead {
        count: u64,
        #[arg(long)]
        direct: bool,
    },
    /// Overwrites blocks of 4 KiB at random places of the large file, and syncs it at the end
    RandomWrite {
        count: u64,
        #[arg(long)]
        direct: bool,
    },
    /// Appends blocks of 4 KiB to a new file, and syncs it after each
    Fsync { count: u64 },
    /// Makes files of 4 KiB in a directory for each thread, and syncs each of them
    SmallFiles {
        count: u64,
        #[arg(long, default_value_t = 1)]
        threads: u64,
    },
    /// Makes the files that `database` overwrites
    MakeDatabase {
        mib: u64,
        #[arg(long, default_value_t = 1)]
        threads: u64,
    },
    /// Overwrites random blocks of 4 KiB in a file for each thread, with an fdatasync after each
    Database {
        count: u64,
        #[arg(long, default_value_t = 1)]
        threads: u64,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    let dir = open(CWD, &args.dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let measured = run(dir.as_fd(), args.load)?;
    println!("{}", measured.to_json());
    Ok(())
}

fn run(top: BorrowedFd<'_>, load: Load) -> Result<Measured> {
    match load {
        Load::Create { count } => create(top, count, &[]),
        Load::CreateSmall { count } => create(top, count, &[b'x'; BLOCK as usize]),
        Load::Stat { count, shuffled } => each_in(top, order(count, shuffled), |dir, name| stat(dir, name)),
        Load::ReadFiles { count, shuffled } => read_files(top, order(count, shuffled)),
        Load::SeekHole => seek_hole(top),
        Load::Readdir => list(top, |_| Ok(())),
        Load::ReaddirStat => {
            let dir = open(top, "d", OFlags::RDONLY | OFlags::DIRECTORY)?;
            list(top, |name| stat(dir.as_fd(), name))
        }
        Load::Unlink { count, every } => each(top, count, every, |dir, name| {
            Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
        }),
        Load::SyncDir => synced::dir(top),
        Load::StreamWrite { bytes, content } => stream_write(top, bytes, content),
        Load::StreamRead => stream_read(top),
        Load::RandomRead { count, direct } => random(top, count, direct, false),
        Load::RandomWrite { count, direct } => random(top, count, direct, true),
        Load::Fsync { count } => fsyncs(top, count),
        Load::SmallFiles { count, threads } => synced::small_files(top, count, threads.max(1)),
        Load::MakeDatabase { mib, threads } => synced::make_database(top, mib, threads),
        Load::Database { count, threads } => synced::database(top, count, threads.max(1)),
    }
}

fn stat(dir: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<()> {
    rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
    Ok(())
}

fn create(top: BorrowedFd<'_>, count: u64, contents: &[u8]) -> Result<Measured> {
    rustix::fs::mkdirat(top, "d", Mode::from_raw_mode(0o755))?;
    each(top, count, 1, |dir, name| {
        let file = open(dir, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        if !contents.is_empty() {
            ensure!(pwrite(&file, contents, 0)? == contents.len(), "a short write");
        }
        Ok(())
    })
}

fn read_files(top: BorrowedFd<'_>, order: Vec<u64>) -> Result<Measured> {
    let (mut buf, range) = buffer(BLOCK as usize);
    each_in(top, order, |dir, name| {
        let file = open(dir, name, OFlags::RDONLY)?;
        let mut at = 0;
        while let done @ 1.. = pread(&file, &mut buf[range.clone()], at)? {
            at += done as u64;
        }
        Ok(())
    })
}

fn seek_hole(top: BorrowedFd<'_>) -> Result<Measured> {
    let file = open(top, "extents", OFlags::RDONLY)?;
    let size = rustix::fs::fstat(&file)?.st_size as u64;
    Measured::of(|| {
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0))?;
        ensure!(hole > size / 2 && hole < size, "a hole at {hole} of {size} bytes");
        Ok((1, 0))
    })
}

/// Numbers of names: in the order of their making, or shuffled, always in the same way.
fn order(count: u64, shuffled: bool) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    if shuffled {
        let mut dice = Rng::new(7);
        for left in (1..order.len()).rev() {
            order.swap(left, dice.below(left as u64 + 1) as usize);
        }
    }
    order
}

/// Does something with each of the names of `d`, or with every n-th.
fn each(
    top: BorrowedFd<'_>,
    count: u64,
    every: u64,
    run: impl FnMut(BorrowedFd<'_>, &str) -> Result<()>,
) -> Result<Measured> {
    let numbers = (0..count).step_by(usize::try_from(every.max(1))?);
    each_in(top, numbers, run)
}

/// Does something with these names of `d`.
fn each_in(
    top: BorrowedFd<'_>,
    numbers: impl IntoIterator<Item = u64>,
    mut run: impl FnMut(BorrowedFd<'_>, &str) -> Result<()>,
) -> Result<Measured> {
    let dir = open(top, "d", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut name = String::new();
    Measured::of(|| {
        let mut count = 0;
        for n in numbers {
            count += 1;
            use std::fmt::Write as _;
            name.clear();
            write!(name, "file-{n:08}")?;
            run(dir.as_fd(), &name)?;
        }
        Ok((count, 0))
    })
}

fn list(top: BorrowedFd<'_>, mut each: impl FnMut(&std::ffi::CStr) -> Result<()>) -> Result<Measured> {
    /// What the C library's readdir uses.
    const LIST_BYTES: usize = 32 << 10;
    Measured::of(|| {
        let dir = open(top, "d", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buf = [MaybeUninit::uninit(); LIST_BYTES];
        let mut entries = RawDir::new(dir.as_fd(), &mut buf);
        let mut count = 0;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if !entry.file_name().to_bytes().starts_with(b".") {
                each(entry.file_name())?;
                count += 1;
            }
        }
        Ok((count, 0))
    })
}

fn stream_write(top: BorrowedFd<'_>, bytes: u64, content: Content) -> Result<Measured> {
    let (mut buf, range) = buffer(STREAM_CALL_BYTES);
    fill_with(content, &mut buf[range.clone()]);
    let calls = bytes / STREAM_CALL_BYTES as u64;
    Measured::of(|| {
        let file = open(top, "large", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        for n in 0..calls {
            let done = pwrite(&file, &buf[range.clone()], n * STREAM_CALL_BYTES as u64)?;
            ensure!(done == STREAM_CALL_BYTES, "a short write");
        }
        rustix::fs::fsync(&file)?;
        Ok((calls, calls * STREAM_CALL_BYTES as u64))
    })
}

fn stream_read(top: BorrowedFd<'_>) -> Result<Measured> {
    let (mut buf, range) = buffer(STREAM_CALL_BYTES);
    Measured::of(|| {
        let file = open(top, "large", OFlags::RDONLY)?;
        let mut at = 0;
        let mut calls = 0;
        loop {
            let done = pread(&file, &mut buf[range.clone()], at)?;
            if done == 0 {
                return Ok((calls, at));
            }
            at += done as u64;
            calls += 1;
        }
    })
}

fn random(top: BorrowedFd<'_>, count: u64, direct: bool, write: bool) -> Result<Measured> {
    let (mut buf, range) = buffer(BLOCK as usize);
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let file = open(top, "large", access | flags)?;
    let blocks = rustix::fs::fstat(&file)?.st_size as u64 / BLOCK;
    ensure!(blocks > 0, "the large file is empty");
    let mut dice = Rng::new(4);
    Measured::of(|| {
        for _ in 0..count {
            let at = dice.below(blocks) * BLOCK;
            let done = if write {
                pwrite(&file, &buf[range.clone()], at)?
            } else {
                pread(&file, &mut buf[range.clone()], at)?
            };
            ensure!(done as u64 == BLOCK, "a short transfer");
        }
        if write {
            rustix::fs::fsync(&file)?;
        }
        Ok((count, count * BLOCK))
    })
}

fn fsyncs(top: BorrowedFd<'_>, count: u64) -> Result<Measured> {
    let (buf, range) = buffer(BLOCK as usize);
    let file = open(top, "synced", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    Measured::of(|| {
        for n in 0..count {
            pwrite(&file, &buf[range.clone()], n * BLOCK)?;
            rustix::fs::fsync(&file)?;
        }
        Ok((count, count * BLOCK))
    })
}
