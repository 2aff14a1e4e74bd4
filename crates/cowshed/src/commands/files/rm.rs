//! `cowshed rm` and `cowshed rmdir`.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use cowshed::FileKind;
use cowshed_device::OpenMode;

use super::session::{Place, Session, quoted, reason};
use super::side::{Follow, Stat};
use super::walk::{Descend, When, walk};
use crate::people::kind_name;

#[derive(Args, Debug)]
pub struct RmArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// No complaint of what is not there, no question
    #[arg(short, long, overrides_with = "interactive")]
    force: bool,
    /// Ask before each removal
    #[arg(short, overrides_with = "force")]
    interactive: bool,
    /// Empty directories, too
    #[arg(short, long)]
    dir: bool,
    /// Say what is removed
    #[arg(short, long)]
    verbose: bool,
}

pub fn run(args: &RmArgs, session: &Session<'_>) -> Result<()> {
    for path in &args.paths {
        let (_, place) = session.in_image(path, OpenMode::ReadWrite)?;
        one(args, session, &place);
    }
    Ok(())
}

fn one(args: &RmArgs, session: &Session<'_>, place: &Place) {
    let name = place.name();
    if args.recursive && matches!(name.as_bytes(), b"." | b"..") {
        return session.complain(format_args!(
            "refusing to remove '.' or '..' directory: skipping {}",
            place.quoted()
        ));
    }
    if args.recursive && name.is_empty() {
        return session.complain(format_args!(
            "it is dangerous to operate recursively on {}",
            place.quoted()
        ));
    }
    let stat = match place.stat(Follow::No) {
        Ok(stat) => stat,
        Err(error) => {
            let is_absent = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
            if !(args.force && is_absent) {
                session.cannot("remove", place, &error);
            }
            return;
        }
    };
    let how = Removal {
        is_verbose: args.verbose,
        asks: args.interactive,
    };
    if !stat.is_dir() || args.recursive {
        remove_tree(session, place, how);
        return;
    }
    if !args.dir {
        let error = std::io::Error::from_raw_os_error(libc::EISDIR);
        return session.cannot("remove", place, &error);
    }
    if how.asks && !asks_to_remove(session, place, &stat) {
        return;
    }
    match place.side.remove_dir(&place.path) {
        Ok(()) if args.verbose => session.say(format_args!("removed directory {}", place.quoted())),
        Ok(()) => {}
        Err(error) => session.cannot("remove", place, &error),
    }
}

/// How things are removed.
#[derive(Clone, Copy, Default)]
pub struct Removal {
    pub is_verbose: bool,
    /// Before each one, and before a directory is entered.
    pub asks: bool,
}

/// True: yes.
fn asks_to_remove(session: &Session<'_>, place: &Place, stat: &Stat) -> bool {
    let kind = match stat.kind {
        FileKind::Regular if stat.size_bytes == 0 => "regular empty file",
        kind => kind_name(kind),
    };
    session.asks(format_args!("remove {kind} {}", place.quoted()))
}

/// Removes a file, or a directory with all that is in it. False: something was complained about.
pub fn remove_tree(session: &Session<'_>, start: &Place, how: Removal) -> bool {
    let mut is_well = true;
    // A directory that is not entered is seen again at once.
    let mut is_declined = false;
    let _ = walk(start, Follow::No, &mut |seen| {
        if session.is_broken() {
            is_well = false;
            return ControlFlow::Break(());
        }
        let removed = match &seen {
            Err((place, error)) => {
                session.cannot("remove", place, error);
                is_well = false;
                return ControlFlow::Continue(Descend::No);
            }
            Ok(visit) if visit.stat.is_dir() && visit.when == When::Before => {
                is_declined = how.asks && declines(session, visit.place);
                return ControlFlow::Continue(if is_declined { Descend::No } else { Descend::Yes });
            }
            Ok(_) if std::mem::take(&mut is_declined) => return ControlFlow::Continue(Descend::No),
            Ok(visit) if how.asks && !asks_to_remove(session, visit.place, visit.stat) => {
                return ControlFlow::Continue(Descend::No);
            }
            Ok(visit) if visit.stat.is_dir() => visit.place.side.remove_dir(&visit.place.path),
            Ok(visit) => visit.place.side.unlink(&visit.place.path),
        };
        if let Ok(visit) = &seen {
            match removed {
                Ok(()) if how.is_verbose && visit.stat.is_dir() => {
                    session.say(format_args!("removed directory {}", visit.place.quoted()));
                }
                Ok(()) if how.is_verbose => session.say(format_args!("removed {}", visit.place.quoted())),
                Ok(()) => {}
                // What is in it could not be removed, which was said.
                Err(error) if !is_well && error.raw_os_error() == Some(libc::ENOTEMPTY) => {}
                Err(error) => {
                    session.cannot("remove", visit.place, &error);
                    is_well = false;
                }
            }
        }
        ControlFlow::Continue(Descend::No)
    });
    is_well
}

/// Asks before a directory is entered that is not empty. True: it is not to be entered.
fn declines(session: &Session<'_>, dir: &Place) -> bool {
    let is_empty = dir.side.names(&dir.path).is_ok_and(|names| names.is_empty());
    !is_empty && !session.asks(format_args!("descend into directory {}", dir.quoted()))
}

#[derive(Args, Debug)]
pub struct RmdirArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Directories above, too, as far as they are empty
    #[arg(short, long)]
    parents: bool,
    /// Say what is removed
    #[arg(short, long)]
    verbose: bool,
}

pub fn run_rmdir(args: &RmdirArgs, session: &Session<'_>) -> Result<()> {
    for path in &args.paths {
        let (_, place) = session.in_image(path, OpenMode::ReadWrite)?;
        let mut inner = place.path.clone();
        loop {
            let shown = match inner == place.path {
                true => place.shown.clone(),
                false => inner.clone().into_os_string(),
            };
            if args.verbose {
                session.say(format_args!("cowshed rmdir: removing directory, {}", quoted(&shown)));
            }
            if let Err(error) = place.side.remove_dir(&inner) {
                session.complain(format_args!("failed to remove {}: {}", quoted(&shown), reason(&error)));
                break;
            }
            if !args.parents || !inner.pop() || inner.file_name().is_none() {
                break;
            }
        }
    }
    Ok(())
}
