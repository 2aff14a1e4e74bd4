//! Contents: by calls, past the page cache, through mappings.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags as F, OFlags};

use super::{Actor, FILE_BYTES_MAX};
use crate::held::Held;
use crate::map::SharedMap;
use crate::names;

const PAGE_BYTES: u64 = 4096;

pub fn create(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::file(&mut actor.rng);
    let more = [OFlags::empty(), OFlags::EXCL, OFlags::TRUNC][actor.rng.index(3)];
    let mode = [0o644, 0o600, 0o666, 0o6777][actor.rng.index(4)];
    *told = format!("create {path} {more:?} {mode:o}");
    let mut file = actor.open_with(&path, OFlags::CREATE | OFlags::RDWR | more, mode)?;
    if actor.rng.one_in(2) {
        let bytes = actor.bytes();
        *told += &format!(" and write {}x{:02x}", bytes.len(), bytes[0]);
        file.write_all(&bytes)?;
    }
    if actor.rng.one_in(6) {
        actor.keep(Held::file(&path, file));
    }
    Ok(())
}

pub fn write(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    *told = "write".into();
    let file = actor.file(told)?;
    let (bytes, at) = (actor.bytes(), actor.offset());
    *told += &format!(" at {at} {}x{:02x}", bytes.len(), bytes[0]);
    file.write_all_at(&bytes, at)
}

pub fn append(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::file(&mut actor.rng);
    *told = format!("append {path}");
    let mut file = actor.open(&path, OFlags::WRONLY | OFlags::APPEND)?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        *told += " after cutting it";
        file.set_len(100)?;
    }
    let bytes = actor.bytes();
    *told += &format!(" {}x{:02x}", bytes.len(), bytes[0]);
    file.write_all(&bytes)
}

pub fn direct(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::file(&mut actor.rng);
    let is_write = !actor.rng.one_in(3);
    *told = format!("direct {} {path}", if is_write { "write" } else { "read" });
    let file = actor.open(&path, OFlags::RDWR | OFlags::DIRECT)?;
    let len = (PAGE_BYTES * (1 + actor.rng.below(4))) as usize;
    let at = actor.offset() & !(PAGE_BYTES - 1);
    let mut room = vec![0; len + PAGE_BYTES as usize];
    let start = room.as_ptr().align_offset(PAGE_BYTES as usize);
    let aligned = &mut room[start..start + len];
    if !is_write {
        return file.read_at(aligned, at).map(drop);
    }
    let byte = actor.bytes()[0];
    aligned.fill(byte);
    *told += &format!(" at {at} {len}x{byte:02x}");
    file.write_all_at(aligned, at)
}

pub fn store(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (bytes, at) = (actor.bytes(), actor.offset() as usize);
    let words = format!(" at {at} {}x{:02x}", bytes.len(), bytes[0]);
    let mapped: Vec<usize> = (0..actor.held.len())
        .filter(|at| actor.held[*at].map.is_some())
        .collect();
    if !mapped.is_empty() && actor.rng.one_in(2) {
        let held = &mut actor.held[mapped[actor.rng.index(mapped.len())]];
        *told = format!("store {}{words}", held.label);
        let map = held.map.as_mut().expect("it was chosen for that");
        return map.store(at, &bytes).map(drop);
    }
    *told = "store".into();
    let file = actor.file(told)?;
    *told += &words;
    SharedMap::new(&file, FILE_BYTES_MAX as usize, true)?.store(at, &bytes)?;
    match actor.rng.one_in(3) {
        true => {
            *told += " and fsync";
            file.sync_data()
        }
        false => Ok(()),
    }
}

pub fn load(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    *told = "load".into();
    let file = actor.file(told)?;
    SharedMap::new(&file, FILE_BYTES_MAX as usize, false)?
        .load(0, FILE_BYTES_MAX as usize)
        .map(drop)
}

pub fn read(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    *told = "read".into();
    let mut file = actor.file(told)?;
    file.read_to_end(&mut Vec::new()).map(drop)
}

pub fn truncate(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let size = match actor.rng.below(4) {
        0 => 0,
        1 => actor.rng.below(3000),
        _ => actor.offset(),
    };
    *told = "truncate".into();
    let file = actor.file(told)?;
    *told += &format!(" to {size}");
    file.set_len(size)
}

pub fn allocate(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let how = [
        F::empty(),
        F::KEEP_SIZE,
        F::PUNCH_HOLE | F::KEEP_SIZE,
        F::ZERO_RANGE,
        F::ZERO_RANGE | F::KEEP_SIZE,
    ][actor.rng.index(5)];
    *told = "allocate".into();
    let file = actor.file(told)?;
    let (at, len) = (actor.offset(), 1 + actor.rng.below(20_000));
    *told += &format!(" {how:?} at {at} {len}");
    Ok(rustix::fs::fallocate(file, how, at, len)?)
}

pub fn copy(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    *told = "copy".into();
    let (from, to) = (actor.file(told)?, actor.file(told)?);
    let (mut at, mut to_at, len) = (actor.offset(), actor.offset(), 1 + actor.rng.index(20_000));
    *told += &format!(" {at} to {to_at} {len}");
    rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), len)?;
    Ok(())
}

pub fn fsync(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    *told = "fsync".into();
    let file = actor.file(told)?;
    file.sync_all()
}
