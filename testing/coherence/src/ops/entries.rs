//! Names that come, go and move.

use std::fs;
use std::io;
use std::os::unix::fs::symlink as make_symlink;

use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags};

use super::{Actor, link_of};
use crate::held::Held;
use crate::names;

fn rename_as(actor: &mut Actor, told: &mut String, verb: &str, flags: RenameFlags) -> io::Result<()> {
    let is_any = actor.rng.one_in(4);
    let mut name = || match is_any {
        true => names::any(&mut actor.rng),
        false => names::file(&mut actor.rng),
    };
    let (from, to) = (name(), name());
    *told = format!("{verb} {from} {to}");
    rename_with(actor, &from, &to, flags)
}

fn rename_with(actor: &Actor, from: &str, to: &str, flags: RenameFlags) -> io::Result<()> {
    let (from, to) = (actor.path(from), actor.path(to));
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

pub fn rename(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    rename_as(actor, told, "rename", RenameFlags::empty())
}

pub fn exchange(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    rename_as(actor, told, "exchange", RenameFlags::EXCHANGE)
}

pub fn no_replace(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    rename_as(actor, told, "noreplace", RenameFlags::NOREPLACE)
}

pub fn whiteout(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    rename_as(actor, told, "whiteout", RenameFlags::WHITEOUT)
}

pub fn rename_dir(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (from, to) = (names::new_dir(&mut actor.rng), names::new_dir(&mut actor.rng));
    let flags = match actor.rng.one_in(4) {
        true => RenameFlags::EXCHANGE,
        false => RenameFlags::empty(),
    };
    *told = format!("rename-dir {from} {to} {flags:?}");
    rename_with(actor, &from, &to, flags)
}

pub fn link(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (from, to) = (names::file(&mut actor.rng), names::file(&mut actor.rng));
    *told = format!("link {from} {to}");
    fs::hard_link(actor.path(&from), actor.path(&to))
}

pub fn unlink(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::file(&mut actor.rng);
    *told = format!("unlink {path}");
    fs::remove_file(actor.path(&path))
}

pub fn mkdir(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::new_dir(&mut actor.rng);
    *told = format!("mkdir {path}");
    fs::create_dir(actor.path(&path))
}

pub fn rmdir(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::new_dir(&mut actor.rng);
    *told = format!("rmdir {path}");
    fs::remove_dir(actor.path(&path))
}

pub fn symlink(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (path, target) = (names::file(&mut actor.rng), names::any(&mut actor.rng));
    *told = format!("symlink {path} to {target}");
    make_symlink(target, actor.path(&path))
}

/// A file without a name, which gets one, or is kept as it is.
pub fn link_unnamed(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let (dir, to) = (names::dir(&mut actor.rng), names::file(&mut actor.rng));
    *told = format!("tmpfile in {dir}/");
    let file = actor.open_with(&dir, OFlags::TMPFILE | OFlags::RDWR, 0o644)?;
    let bytes = actor.bytes();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0)?;
    if !actor.rng.one_in(3) {
        *told += &format!(" linked {to}");
        rustix::fs::linkat(CWD, link_of(&file), CWD, actor.path(&to), AtFlags::SYMLINK_FOLLOW)?;
    }
    if actor.rng.one_in(3) {
        actor.keep(Held::file(&format!("{dir}/tmpfile"), file));
    }
    Ok(())
}

/// As `rm -r`.
pub fn unlink_all(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::new_dir(&mut actor.rng);
    *told = format!("unlink-all {path}");
    fs::remove_dir_all(actor.path(&path))
}
