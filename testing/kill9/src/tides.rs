//! Fills the volume with data until there is no room and deletes most of it, fills it with names
//! until there is no room and deletes most of them, and again, until the mount is gone.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cowshed_model::Rng;

use crate::ledger::is_gone;

/// The directory, at the top of the volume.
const DIR: &str = "tides";
const FILE_BYTES: usize = 1 << 20;
/// What a small file holds stays in the trees.
const SMALL_BYTES: usize = 1000;
/// A tide turns after so many at the latest.
const FILES_MAX: u64 = 100_000;
/// One of so many stays.
const KEPT_ONE_IN: u64 = 10;

/// Works below the root until the mount fails; an error if it does so in any other way than by
/// being gone. Gives how often the volume was full.
pub fn work(root: &Path, seed: u64) -> Result<u64> {
    let (mut dice, mut full) = (Rng::new(!seed), 0);
    match tides(&root.join(DIR), &mut dice, &mut full) {
        Err(error) if !is_gone(&error) => Err(error).context("the tides"),
        _ => Ok(full),
    }
}

fn tides(dir: &Path, dice: &mut Rng, full: &mut u64) -> io::Result<()> {
    loop {
        let bytes = if dice.one_in(2) { FILE_BYTES } else { SMALL_BYTES };
        // The volume may be full of what an earlier round has left.
        match fs::create_dir(dir) {
            Err(e) if !matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::StorageFull) => return Err(e),
            _ => {}
        }
        *full += u64::from(rise(dir, bytes, dice)?);
        ebb(dir, dice)?;
    }
}

/// Is the volume full?
fn rise(dir: &Path, bytes: usize, dice: &mut Rng) -> io::Result<bool> {
    for _ in 0..FILES_MAX {
        let path = dir.join(format!("{bytes}-{:016x}", dice.next_u64()));
        let content = vec![dice.next_u64() as u8; bytes];
        match File::create(&path).and_then(|mut file| file.write_all(&content)) {
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(true),
            other => other?,
        }
    }
    Ok(false)
}

/// To delete must be possible.
fn ebb(dir: &Path, dice: &mut Rng) -> io::Result<()> {
    let paths: Vec<PathBuf> = match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for path in paths {
        if !dice.one_in(KEPT_ONE_IN) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
