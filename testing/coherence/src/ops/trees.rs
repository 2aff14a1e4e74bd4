//! Subvolumes, and what the command under test does by ioctls.

use std::io;
use std::path::PathBuf;

use cowshed_harness::{create_subvolume, delete_subvolume, run, snapshot};

use super::{Actor, to_read};
use crate::names;

/// Makes a subvolume or a snapshot, or deletes one.
pub fn subvolume(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let path = names::new_dir(&mut actor.rng);
    let (dir, name) = names::split(&path);
    match actor.rng.below(7) {
        0 | 1 => {
            *told = format!("subvolume-create {path}");
            create_subvolume(&actor.open_dir(dir)?, name)
        }
        2 | 3 => {
            let from = names::new_dir(&mut actor.rng);
            *told = format!("snapshot {from} {path}");
            let source = actor.open_dir(&from)?;
            snapshot(&source, &actor.open_dir(dir)?, name, false)
        }
        _ => {
            *told = format!("subvolume-delete {path}");
            delete_subvolume(&actor.open_dir(dir)?, name)
        }
    }
}

fn command(actor: &Actor, args: &[PathBuf]) -> io::Result<()> {
    let program = actor.cowshed.to_string_lossy();
    run(&program, args).map(drop).map_err(io::Error::other)
}

/// What the command asks of the mount by ioctls: clones of trees and files, exchanges, dedupes.
pub fn by_command(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    let verb = [
        "clone-tree",
        "clone-tree",
        "clone",
        "clone",
        "exchange",
        "dedupe",
        "defrag",
    ][actor.rng.index(7)];
    let mut name = || match verb {
        "clone-tree" => names::new_dir(&mut actor.rng),
        _ => names::file(&mut actor.rng),
    };
    let (from, to) = (name(), name());
    let flags: &[&str] = match verb {
        "clone-tree" => &["clone", "-q", "-r"],
        "exchange" => &["exchange"],
        "dedupe" => &["dedupe"],
        "defrag" => &["defrag"],
        _ => &["clone", "-q"],
    };
    let mut args: Vec<PathBuf> = flags.iter().map(Into::into).collect();
    args.push(actor.path(&from));
    *told = format!("cowshed-{verb} {from}");
    if verb != "defrag" {
        args.push(actor.path(&to));
        *told += &format!(" {to}");
    }
    command(actor, &args)
}

pub fn sync(actor: &mut Actor, told: &mut String) -> io::Result<()> {
    if actor.rng.one_in(2) {
        *told = "sync".into();
        return Ok(rustix::fs::syncfs(to_read(&actor.root)?)?);
    }
    *told = "cowshed-sync".into();
    command(actor, &["sync".into(), actor.root.clone()])
}
