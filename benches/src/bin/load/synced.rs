//! Loads whose time goes into fsync, from several threads.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Result, ensure};
use cowshed_benches::Measured;
use cowshed_device_sim::Rng;
use rustix::fs::{Mode, OFlags};
use rustix::io::pwrite;

use crate::calls::{BLOCK, buffer, open};

/// Syncs the directory of the names.
pub fn dir(top: BorrowedFd<'_>) -> Result<Measured> {
    let dir = open(top, "d", OFlags::RDONLY | OFlags::DIRECTORY)?;
    Measured::of(|| {
        rustix::fs::fsync(&dir)?;
        Ok((1, 0))
    })
}

/// Each thread makes files in a directory of its own, writes one block into each and syncs it.
pub fn small_files(top: BorrowedFd<'_>, count: u64, threads: u64) -> Result<Measured> {
    let (buf, range) = buffer(BLOCK as usize);
    let each = count / threads;
    for thread in 0..threads {
        let name = format!("small-{thread}");
        rustix::fs::mkdirat(top, &name, Mode::from_raw_mode(0o755))?;
    }
    let work = |thread: u64| -> Result<()> {
        let dir = open(
            top,
            format!("small-{thread}").as_str(),
            OFlags::RDONLY | OFlags::DIRECTORY,
        )?;
        for n in 0..each {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let file = open(dir.as_fd(), format!("file-{n:08}").as_str(), flags)?;
            ensure!(pwrite(&file, &buf[range.clone()], 0)? as u64 == BLOCK, "a short write");
            rustix::fs::fsync(&file)?;
        }
        Ok(())
    };
    Measured::of(|| {
        in_threads(threads, work)?;
        Ok((each * threads, each * threads * BLOCK))
    })
}

fn database_name(thread: u64) -> String {
    format!("database-{thread}")
}

/// Writes the files that [`database`] overwrites, and syncs the file system: they are old then.
pub fn make_database(top: BorrowedFd<'_>, mib: u64, threads: u64) -> Result<Measured> {
    const CALL_BYTES: usize = 1 << 20;
    let (buf, range) = buffer(CALL_BYTES);
    Measured::of(|| {
        for thread in 0..threads {
            let file = open(
                top,
                database_name(thread).as_str(),
                OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
            )?;
            for n in 0..mib {
                let done = pwrite(&file, &buf[range.clone()], n * CALL_BYTES as u64)?;
                ensure!(done == CALL_BYTES, "a short write");
            }
        }
        rustix::fs::syncfs(top)?;
        Ok((mib * threads, mib * threads * CALL_BYTES as u64))
    })
}

/// Each thread overwrites random blocks of a file of its own, with an fdatasync after each.
pub fn database(top: BorrowedFd<'_>, count: u64, threads: u64) -> Result<Measured> {
    let (buf, range) = buffer(BLOCK as usize);
    let each = count / threads;
    let work = |thread: u64| -> Result<()> {
        let file = open(top, database_name(thread).as_str(), OFlags::RDWR)?;
        let blocks = rustix::fs::fstat(&file)?.st_size as u64 / BLOCK;
        ensure!(blocks > 0, "the file is empty");
        let mut dice = Rng::new(thread);
        for _ in 0..each {
            let at = dice.below(blocks) * BLOCK;
            ensure!(pwrite(&file, &buf[range.clone()], at)? as u64 == BLOCK, "a short write");
            rustix::fs::fdatasync(&file)?;
        }
        Ok(())
    };
    Measured::of(|| {
        in_threads(threads, work)?;
        Ok((each * threads, each * threads * BLOCK))
    })
}

fn in_threads(threads: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| {
                let work = &work;
                scope.spawn(move || work(thread))
            })
            .collect();
        for thread in all {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread of the load panicked"))??;
        }
        Ok(())
    })
}
