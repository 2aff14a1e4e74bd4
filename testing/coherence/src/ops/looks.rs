//! What fills Linux' caches: lookups, listings, open files.

use std::fs;
use std::io;

use rustix::fs::OFlags;

use super::{Actor, FILE_BYTES_MAX};
use crate::held::Held;
use crate::map::SharedMap;
use crate::names;

pub fn stat(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::any(&mut actor.rng);
    *told = format!("stat {path}");
    fs::symlink_metadata(actor.path(&path)).map(drop)
}

/// All names of the pool in a directory: most are absent, which Linux remembers.
pub fn stat_pool(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let dir = names::dir(&mut actor.rng);
    *told = format!("stat-pool {dir}/");
    let path = actor.path(&dir);
    for name in names::pool() {
        match fs::symlink_metadata(path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

pub fn list(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let dir = names::dir(&mut actor.rng);
    *told = format!("list {dir}/");
    fs::read_dir(actor.path(&dir))?.try_for_each(|entry| entry.map(drop))
}

pub fn list_and_stat(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let dir = names::dir(&mut actor.rng);
    *told = format!("list-stat {dir}/");
    for entry in fs::read_dir(actor.path(&dir))? {
        entry?.metadata()?;
    }
    Ok(())
}

/// Opens something and keeps it open, half of the files with a mapping.
pub fn hold(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    if actor.rng.one_in(4) {
        let path = names::dir(&mut actor.rng);
        *told = format!("hold {path}/");
        let dir = actor.open_dir(&path)?;
        actor.keep(Held::dir(&path, dir));
        return Ok(());
    }
    let path = names::file(&mut actor.rng);
    *told = format!("hold {path}");
    let file = actor.open(&path, OFlags::RDWR | OFlags::NOFOLLOW)?;
    let mut held = Held::file(&path, file);
    if actor.rng.one_in(2) {
        *told += " mapped";
        held.map = Some(SharedMap::new(&held.file, FILE_BYTES_MAX as usize, true)?);
    }
    actor.keep(held);
    Ok(())
}

pub fn release(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    *told = "release".into();
    if !actor.held.is_empty() {
        let at = actor.rng.index(actor.held.len());
        *told += &format!(" {}", actor.held[at].label);
        actor.held.swap_remove(at);
    }
    Ok(())
}
