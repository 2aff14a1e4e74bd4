//! `cowshed rm` and `cowshed rmdir`.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use cowshed_device::OpenMode;

use super::session::{Place, Session, quoted, reason};
use super::side::Follow;
use super::walk::{Descend, When, walk};

#[derive(Args, Debug)]
pub struct RmArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// No complaint of what is not there
    #[arg(short, long)]
    force: bool,
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
    if !stat.is_dir() || args.recursive {
        remove_tree(session, place, args.verbose);
        return;
    }
    if !args.dir {
        let error = std::io::Error::from_raw_os_error(libc::EISDIR);
        return session.cannot("remove", place, &error);
    }
    match place.side.remove_dir(&place.path) {
        Ok(()) if args.verbose => session.say(format_args!("removed directory {}", place.quoted())),
        Ok(()) => {}
        Err(error) => session.cannot("remove", place, &error),
    }
}

/// Removes a file, or a directory with all that is in it. False: something was complained about.
pub fn remove_tree(session: &Session<'_>, start: &Place, is_verbose: bool) -> bool {
    let mut is_well = true;
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
                return ControlFlow::Continue(Descend::Yes);
            }
            Ok(visit) if visit.stat.is_dir() => visit.place.side.remove_dir(&visit.place.path),
            Ok(visit) => visit.place.side.unlink(&visit.place.path),
        };
        if let Ok(visit) = &seen {
            match removed {
                Ok(()) if is_verbose && visit.stat.is_dir() => {
                    session.say(format_args!("removed directory {}", visit.place.quoted()));
                }
                Ok(()) if is_verbose => session.say(format_args!("removed {}", visit.place.quoted())),
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
