//! `cowshed mv`: renames within an image; between sides a copy and a removal.

use std::io::Error;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use cowshed_device::OpenMode;

use super::copy::{Copier, Options, Update};
use super::cp::operands;
use super::operands::{named, target};
use super::rm;
use super::session::{Place, Session, reason};
use super::side::{Follow, Stat};

#[derive(Args, Debug)]
pub struct MvArgs {
    /// What is moved, and last, where to: paths of the host, or IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Do not ask; this is so anyway
    #[arg(short, long, overrides_with_all = ["interactive", "no_clobber"])]
    force: bool,
    /// Ask before a file is replaced
    #[arg(short, long, overrides_with_all = ["force", "no_clobber"])]
    interactive: bool,
    /// Leave files alone that are there
    #[arg(short, long, overrides_with_all = ["force", "interactive"])]
    no_clobber: bool,
    /// Replace only files that are older
    #[arg(short)]
    u: bool,
    /// Which files are replaced: all, none, or those that are older
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "older")]
    update: Option<Update>,
    /// Say what is moved
    #[arg(short, long)]
    verbose: bool,
    /// The last path is the new name, not a directory to move into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Move into this directory
    #[arg(short = 't', long, value_name = "DIRECTORY")]
    target_directory: Option<PathBuf>,
}

pub fn run(args: &MvArgs, session: &Session<'_>) -> Result<()> {
    let into = args.target_directory.as_ref();
    let (from, to) = operands(session, &args.paths, into, OpenMode::ReadWrite)?;
    let Some(target) = target(session, to, from.len(), into.is_some(), args.no_target_directory) else {
        return Ok(());
    };
    // One for all: hard links between operands are kept.
    let mut copier = Copier::new(session, Options::whole());
    for from in &from {
        one(args, session, &mut copier, from, &named(&target, from));
    }
    Ok(())
}

fn one<'s>(args: &MvArgs, session: &'s Session<'s>, copier: &mut Copier<'s>, from: &Place, to: &Place) {
    let stat = match from.stat(Follow::No) {
        Ok(_) if session.is_moved(from) => {
            return session.cannot("stat", from, &Error::from_raw_os_error(libc::ENOENT));
        }
        Ok(stat) => stat,
        Err(error) => return session.cannot("stat", from, &error),
    };
    let there = to.stat(Follow::No).ok();
    if there.is_some() && (args.no_clobber || args.update == Some(Update::None)) {
        return;
    }
    let (shown_from, shown_to) = (from.quoted(), to.quoted());
    if let Some(there) = there {
        let is_one_file = from.is_on(to) && (there.dev, there.ino) == (stat.dev, stat.ino);
        let is_link_to = || {
            let end = from.side.resolve(&from.path);
            end.is_ok_and(|path| Place { path, ..from.clone() }.is_same_entry(to))
        };
        let is_same = is_one_file && (stat.is_dir() || from.is_same_entry(to));
        if is_same || stat.is_symlink() && !there.is_symlink() && is_link_to() {
            return session.complain(format_args!("{shown_from} and {shown_to} are the same file"));
        }
        match (stat.is_dir(), there.is_dir()) {
            (true, false) => {
                return session.complain(format_args!(
                    "cannot overwrite non-directory {shown_to} with directory {shown_from}"
                ));
            }
            (false, true) => {
                return session.complain(format_args!(
                    "cannot overwrite directory {shown_to} with non-directory {shown_from}"
                ));
            }
            _ => {}
        }
        let is_older = (there.mtime.secs, there.mtime.nanos) < (stat.mtime.secs, stat.mtime.nanos);
        if (args.u || args.update == Some(Update::Older)) && !stat.is_dir() && !is_older {
            return;
        }
        if args.interactive && !session.asks(format_args!("overwrite {shown_to}")) {
            return;
        }
        // rename(2) does nothing with two names of one file.
        if is_one_file {
            if let Err(error) = from.side.unlink(&from.path) {
                session.cannot("remove", from, &error);
            }
            return;
        }
        if !stat.is_dir() && copier.has_made(to) {
            return session.complain(format_args!(
                "will not overwrite just-created {shown_to} with {shown_from}"
            ));
        }
    }
    if stat.is_dir() && to.is_below(from, Follow::No) {
        return session.complain(format_args!(
            "cannot move {shown_from} to a subdirectory of itself, {shown_to}"
        ));
    }
    let moved = match from.is_on(to) {
        true => from.side.rename(&from.path, &to.path),
        false => Err(Error::from_raw_os_error(libc::EXDEV)),
    };
    match moved {
        Ok(()) => copier.note_made(to),
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            if !copy_and_remove(session, copier, from, to, there.as_ref()) {
                return;
            }
        }
        Err(error) => {
            return session.complain(format_args!(
                "cannot move {shown_from} to {shown_to}: {}",
                reason(&error)
            ));
        }
    }
    if args.verbose {
        session.say(format_args!("renamed {shown_from} -> {shown_to}"));
    }
}

/// What is there goes first: a file that is written into would keep its other names, attributes and
/// kind.
fn copy_and_remove<'s>(
    session: &'s Session<'s>,
    copier: &mut Copier<'s>,
    from: &Place,
    to: &Place,
    there: Option<&Stat>,
) -> bool {
    let removed = match there {
        None => Ok(()),
        Some(there) if there.is_dir() => to.side.remove_dir(&to.path),
        Some(_) => to.side.unlink(&to.path),
    };
    if let Err(error) = removed {
        let (from, to) = (from.quoted(), to.quoted());
        session.complain(format_args!("cannot move {from} to {to}: {}", reason(&error)));
        return false;
    }
    if !copier.copy(from, to) {
        return false;
    }
    if from.is_on(to) && from.side.is_image() {
        return rm::remove_tree(session, from, rm::Removal::default());
    }
    session.remove_when_durable(from, to);
    true
}
