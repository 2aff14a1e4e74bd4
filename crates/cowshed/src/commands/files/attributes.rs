//! `cowshed chmod`, `chown`, `touch`: attributes of files.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use cowshed::Timestamp;
use cowshed_device::OpenMode;

use super::modes::{self, ModeChange};
use super::session::{Place, Session, quoted, reason};
use super::side::{Create, Follow, Side as _, Stat};
use super::walk::{Descend, When, walk};
use crate::sys;

#[derive(Args, Debug)]
pub struct ChmodArgs {
    /// Octal, or as u+rwX,go-w
    #[arg(allow_hyphen_values = true)]
    mode: ModeChange,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What is in directories, too
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Runs on each operand, or on all below it, directories before their contents; symbolic links
/// below are seen as such.
fn each(session: &Session<'_>, paths: &[PathBuf], is_deep: bool, run: &dyn Fn(&Place, &Stat, usize)) -> Result<()> {
    for path in paths {
        let (_, place) = session.in_image(path, OpenMode::ReadWrite)?;
        let _ = walk(&place, Follow::No, &mut |seen| {
            if session.is_broken() {
                return ControlFlow::Break(());
            }
            match seen {
                Ok(visit) if visit.when == When::Before => {
                    run(visit.place, visit.stat, visit.depth);
                    ControlFlow::Continue(if is_deep { Descend::Yes } else { Descend::No })
                }
                Ok(_) => ControlFlow::Continue(Descend::No),
                Err((place, error)) => {
                    session.cannot("access", place, &error);
                    ControlFlow::Continue(Descend::No)
                }
            }
        });
    }
    Ok(())
}

pub fn run_chmod(args: &ChmodArgs, session: &Session<'_>) -> Result<()> {
    let mask = sys::umask();
    each(session, &args.paths, args.recursive, &|place, stat, depth| {
        let stat = match stat.is_symlink() {
            true if depth > 0 => return,
            true => match place.stat(Follow::Yes) {
                Ok(stat) => stat,
                Err(_) => {
                    return session.complain(format_args!("cannot operate on dangling symlink {}", place.quoted()));
                }
            },
            false => *stat,
        };
        let perm = args.mode.apply(stat.perm, stat.is_dir(), mask);
        if let Err(error) = place.side.set_perm(&place.path, perm) {
            session.complain(format_args!(
                "changing permissions of {}: {}",
                place.quoted(),
                reason(&error)
            ));
        }
    })
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct ChownArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// USER, USER:GROUP, :GROUP: numbers, or names of this machine
    owner: String,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What is in directories, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
}

pub fn run_chown(args: &ChownArgs, session: &Session<'_>) -> Result<()> {
    let (uid, gid) = modes::owner(&args.owner).map_err(|error| anyhow!(error))?;
    each(session, &args.paths, args.recursive, &|place, stat, _| {
        // With -R, coreutils change symbolic links that they meet only with -h.
        let follow = match stat.is_symlink() && !args.no_dereference {
            true => Follow::Yes,
            false => Follow::No,
        };
        if let Err(error) = place.side.set_owner(&place.path, uid, gid, follow) {
            if follow == Follow::Yes {
                session.complain(format_args!(
                    "cannot dereference {}: {}",
                    place.quoted(),
                    reason(&error)
                ));
            } else {
                session.complain(format_args!(
                    "changing ownership of {}: {}",
                    place.quoted(),
                    reason(&error)
                ));
            }
        }
    })
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct TouchArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// No new files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The time of access alone
    #[arg(short)]
    access: bool,
    /// The time of the change alone
    #[arg(short)]
    modification: bool,
    /// This time: @SECONDS or YYYY-MM-DD[ HH:MM[:SS[.FRACTION]]][Z|+HH:MM]
    #[arg(short, long, value_name = "TIME", conflicts_with = "reference")]
    date: Option<String>,
    /// The times of this file
    #[arg(short, long, value_name = "PATH")]
    reference: Option<PathBuf>,
    /// Symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
}

pub fn run_touch(args: &TouchArgs, session: &Session<'_>) -> Result<()> {
    let mut images = Vec::new();
    for path in &args.paths {
        images.push(session.in_image(path, OpenMode::ReadWrite)?);
    }
    let times: Option<(Timestamp, Timestamp)> = match (&args.date, &args.reference) {
        (Some(date), _) => match modes::time(date) {
            Some(time) => Some((time, time)),
            None => bail!("invalid date format '{date}'"),
        },
        (None, Some(path)) => {
            let place = session.place(path, OpenMode::ReadOnly)?;
            match place.stat(Follow::Yes) {
                Ok(stat) => Some((stat.atime, stat.mtime)),
                Err(error) => bail!(
                    "failed to get attributes of {}: {}",
                    quoted(path.as_os_str()),
                    reason(&error)
                ),
            }
        }
        (None, None) => None,
    };
    let (atime, mtime) = match (args.access, args.modification) {
        (false, false) => (true, true),
        both => both,
    };
    let follow = if args.no_dereference { Follow::No } else { Follow::Yes };
    for (image, place) in &images {
        if let Err(error) = place.stat(follow) {
            let is_absent = error.raw_os_error() == Some(libc::ENOENT);
            if is_absent && (args.no_create || args.no_dereference) {
                continue;
            }
            let made = match is_absent {
                true => place.side.create(&place.path, Create::Over, 0o666).map(drop),
                false => Err(error),
            };
            if let Err(error) = made {
                session.cannot("touch", place, &error);
                continue;
            }
        }
        let set = match times {
            None => image.touch_now(&place.path, atime, mtime, follow),
            Some((access, modification)) => image.set_times(
                &place.path,
                atime.then_some(access),
                mtime.then_some(modification),
                follow,
            ),
        };
        if let Err(error) = set {
            session.complain(format_args!("setting times of {}: {}", place.quoted(), reason(&error)));
        }
    }
    Ok(())
}
