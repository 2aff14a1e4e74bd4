//! `cowshed mkdir`, `ln`, `readlink`, `truncate`: names and sizes.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use cowshed_device::OpenMode;

use super::copy::made_or_replaced;
use super::modes::ModeChange;
use super::operands::{Made, Target, named, target};
use super::session::{Place, Session, reason};
use super::side::{Create, Follow};

#[derive(Args, Debug)]
pub struct MkdirArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Directories above, too; no complaint of what is there
    #[arg(short, long)]
    parents: bool,
    /// Mode as chmod takes it, not a=rwx without the umask
    #[arg(short, long, allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    /// Say what is made
    #[arg(short, long)]
    verbose: bool,
}

pub fn run_mkdir(args: &MkdirArgs, session: &Session<'_>) -> Result<()> {
    for path in &args.paths {
        let (_, place) = session.in_image(path, OpenMode::ReadWrite)?;
        if let Err(error) = mkdir(args, session, &place) {
            session.cannot("create directory", &place, &error);
        }
    }
    Ok(())
}

fn mkdir(args: &MkdirArgs, session: &Session<'_>, place: &Place) -> std::io::Result<()> {
    if args.parents {
        let bytes = place.path.as_os_str().as_bytes();
        let mut ends: Vec<usize> = (1..bytes.len())
            .filter(|at| bytes[*at] == b'/' && bytes[at - 1] != b'/')
            .collect();
        ends.retain(|end| bytes[*end..].iter().any(|byte| *byte != b'/'));
        for end in ends {
            let above = PathBuf::from(OsString::from_vec(bytes[..end].to_vec()));
            match place.side.make_dir(&above, 0o777) {
                Ok(()) => {
                    // Those above can be entered by their owner whatever the umask says.
                    let perm = place.side.stat(&above, Follow::Yes)?.perm;
                    if perm & 0o300 != 0o300 {
                        place.side.set_perm(&above, perm | 0o300)?;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }
    match place.side.make_dir(&place.path, 0o777) {
        Ok(()) => {}
        Err(error) if args.parents && error.raw_os_error() == Some(libc::EEXIST) => {
            return match place.stat(Follow::Yes)?.is_dir() {
                true => Ok(()),
                false => Err(error),
            };
        }
        Err(error) => return Err(error),
    }
    if let Some(mode) = &args.mode {
        let made = place.stat(Follow::No)?;
        // Set-id bits that the directory above passes on stay.
        let perm = mode.apply(0o777, true, 0) | (made.perm & 0o2000);
        place.side.set_perm(&place.path, perm)?;
    }
    if args.verbose {
        session.say(format_args!("cowshed mkdir: created directory {}", place.quoted()));
    }
    Ok(())
}

#[derive(Args, Debug)]
pub struct LnArgs {
    /// What is linked, and last, the link or the directory for it: IMAGE:/PATH; the target of a
    /// symbolic link is text
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Symbolic links
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what is there
    #[arg(short, long)]
    force: bool,
    /// The last path is the link, not a directory for it
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// A symbolic link to a directory is replaced, not followed
    #[arg(short = 'n', long)]
    no_dereference: bool,
    /// Say what is linked
    #[arg(short, long)]
    verbose: bool,
}

pub fn run_ln(args: &LnArgs, session: &Session<'_>) -> Result<()> {
    let [from @ .., to] = &args.paths[..] else {
        bail!("missing file operand");
    };
    if from.is_empty() {
        bail!("missing destination file operand after '{}'", to.display());
    }
    let (_, to) = session.in_image(to, OpenMode::ReadWrite)?;
    let is_link = to.stat(Follow::No).is_ok_and(|stat| stat.is_symlink());
    let is_name = args.no_target_directory || (args.no_dereference && is_link && from.len() == 1);
    let Some(target) = target(session, to, from.len(), false, is_name) else {
        return Ok(());
    };
    let mut made = Made::default();
    for from in from {
        match args.symbolic {
            true => symlink(args, session, from, &target),
            false => {
                let (_, from) = session.in_image(from, OpenMode::ReadWrite)?;
                hard_link(args, session, &mut made, &from, &named(&target, &from));
            }
        }
    }
    Ok(())
}

fn symlink(args: &LnArgs, session: &Session<'_>, text: &Path, target: &Target) {
    let bytes = text.as_os_str().as_bytes();
    let name = bytes.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    let to = match target {
        Target::At(to) => to.clone(),
        Target::Into(dir) => dir.join(std::ffi::OsStr::from_bytes(name.unwrap_or_default())),
    };
    let make = |path: &Path| to.side.make_symlink(text.as_os_str(), path);
    match made_or_replaced(&to, args.force && to.stat(Follow::No).is_ok(), &make) {
        Ok(()) if args.verbose => session.say(format_args!("{} -> '{}'", to.quoted(), text.display())),
        Ok(()) => {}
        Err(error) => session.complain(format_args!(
            "failed to create symbolic link {}: {}",
            to.quoted(),
            reason(&error)
        )),
    }
}

fn hard_link(args: &LnArgs, session: &Session<'_>, made: &mut Made, from: &Place, to: &Place) {
    let failed = |error: &std::io::Error| {
        session.complain(format_args!(
            "failed to create hard link {}: {}",
            to.quoted(),
            reason(error)
        ));
    };
    match from.stat(Follow::No) {
        Err(error) => {
            return session.complain(format_args!("failed to access {}: {}", from.quoted(), reason(&error)));
        }
        Ok(stat) if stat.is_dir() => {
            return session.complain(format_args!("{}: hard link not allowed for directory", shown(from)));
        }
        Ok(stat) => {
            let there = to.stat(Follow::No);
            let is_one_file = there.is_ok_and(|there| (there.dev, there.ino) == (stat.dev, stat.ino));
            if args.force && is_one_file && from.is_same_entry(to) {
                return session.complain(format_args!("{} and {} are the same file", from.quoted(), to.quoted()));
            }
            if args.force && made.contains(to) {
                let (from, to) = (from.quoted(), to.quoted());
                return session.complain(format_args!("will not overwrite just-created {to} with {from}"));
            }
        }
    }
    if !from.is_on(to) {
        return failed(&std::io::Error::from_raw_os_error(libc::EXDEV));
    }
    let link = |path: &Path| to.side.link(&from.path, path);
    match made_or_replaced(to, args.force && to.stat(Follow::No).is_ok(), &link) {
        Ok(()) => {
            made.note(to);
            if args.verbose {
                session.say(format_args!("{} => {}", to.quoted(), from.quoted()));
            }
        }
        Err(error) => failed(&error),
    }
}

fn shown(place: &Place) -> String {
    crate::people::printable(&place.shown)
}

#[derive(Args, Debug)]
pub struct ReadlinkArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// No newline behind the last
    #[arg(short, long)]
    no_newline: bool,
    /// A zero byte behind each, not a newline
    #[arg(short, long)]
    zero: bool,
}

pub fn run_readlink(args: &ReadlinkArgs, session: &Session<'_>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for (index, path) in args.paths.iter().enumerate() {
        let (_, place) = session.in_image(path, OpenMode::ReadOnly)?;
        match place.side.read_link(&place.path) {
            Ok(target) => {
                out.write_all(target.as_bytes())?;
                let is_last = index + 1 == args.paths.len();
                match (args.zero, args.no_newline && is_last) {
                    (true, _) => out.write_all(b"\0")?,
                    (false, false) => out.write_all(b"\n")?,
                    (false, true) => {}
                }
            }
            Err(error) => session.complain(format_args!("{}: {}", shown(&place), reason(&error))),
        }
    }
    Ok(())
}

#[derive(Args, Debug)]
pub struct TruncateArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Bytes, or with K, M, G, T behind; with + or - before, more or less than now
    #[arg(short, long, allow_hyphen_values = true)]
    size: String,
    /// No new files
    #[arg(short = 'c', long)]
    no_create: bool,
}

pub fn run_truncate(args: &TruncateArgs, session: &Session<'_>) -> Result<()> {
    let (sign, number) = match args.size.strip_prefix(['+', '-']) {
        Some(number) => (args.size.chars().next(), number),
        None => (None, &args.size[..]),
    };
    let Some(bytes) = super::modes::size(number) else {
        bail!("Invalid number: '{}'", args.size);
    };
    for path in &args.paths {
        let (image, place) = session.in_image(path, OpenMode::ReadWrite)?;
        let old = match place.stat(Follow::Yes) {
            Ok(stat) => stat.size_bytes,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                if args.no_create {
                    continue;
                }
                if let Err(error) = place.side.create(&place.path, Create::Over, 0o666) {
                    session.complain(format_args!(
                        "cannot open {} for writing: {}",
                        place.quoted(),
                        reason(&error)
                    ));
                    continue;
                }
                0
            }
            Err(error) => {
                session.cannot("stat", &place, &error);
                continue;
            }
        };
        let size = match sign {
            Some('+') => old.saturating_add(bytes),
            Some(_) => old.saturating_sub(bytes),
            None => bytes,
        };
        if let Err(error) = image.truncate(&place.path, size) {
            session.complain(format_args!(
                "failed to truncate {} at {size} bytes: {}",
                place.quoted(),
                reason(&error)
            ));
        }
    }
    Ok(())
}
