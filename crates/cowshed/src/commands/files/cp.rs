//! `cowshed cp`: copies between the host and images, and within one.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use cowshed_device::OpenMode;

use super::copy::{Copier, Existing, Form, Options, Preserve, Update, When};
use super::operands::{Target, named, target};
use super::session::{Place, Session};
use super::side::Follow;
use crate::devices::ReadArgs;

#[derive(Args, Debug)]
pub struct CpArgs {
    /// What is copied, and last, where to: paths of the host, or IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// As -dR --preserve=all: everything as it is
    #[arg(short, long)]
    archive: bool,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode, owner and times
    #[arg(short)]
    p: bool,
    /// Keep these of: mode, ownership, timestamps, links, xattr, all
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true, default_missing_value = "mode,ownership,timestamps")]
    preserve: Vec<String>,
    /// Copy symbolic links as such, and keep hard links
    #[arg(short)]
    d: bool,
    /// Copy symbolic links as such
    #[arg(short = 'P', long, overrides_with = "dereference")]
    no_dereference: bool,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Where a file cannot be opened, remove it first
    #[arg(short, long)]
    force: bool,
    /// Ask before a file is overwritten
    #[arg(short, long, overrides_with = "no_clobber")]
    interactive: bool,
    /// Leave files alone that are there
    #[arg(short, long, overrides_with = "interactive")]
    no_clobber: bool,
    /// Overwrite only files that are older
    #[arg(short)]
    u: bool,
    /// Which files are overwritten: all, none, or those that are older
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "older")]
    update: Option<Update>,
    /// Make hard links in place of copies
    #[arg(short, long, conflicts_with = "symbolic_link")]
    link: bool,
    /// Make symbolic links in place of copies; the paths are those inside of the image
    #[arg(short, long)]
    symbolic_link: bool,
    /// Stay within the subvolume, or the file system of the host, that a path is on
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Make the directories of each path below the last one, too
    #[arg(long, conflicts_with = "no_target_directory")]
    parents: bool,
    /// Say what is copied
    #[arg(short, long)]
    verbose: bool,
    /// The last path is the name of the copy, not a directory to copy into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Copy into this directory
    #[arg(short = 't', long, value_name = "DIRECTORY")]
    target_directory: Option<PathBuf>,
    /// Holes: auto keeps them, always makes some of zeros, never fills them
    #[arg(long, value_enum, default_value_t = When::Auto)]
    sparse: When,
    /// Share extents within one image
    #[arg(long, value_enum, default_value_t = When::Auto, num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    reflink: When,
    #[command(flatten)]
    read: ReadArgs,
}

impl CpArgs {
    fn options(&self) -> Result<Options> {
        let all = self.archive;
        let mut preserve = Preserve {
            mode: all || self.p,
            owner: all || self.p,
            times: all || self.p,
            links: all || self.d,
            xattrs: all,
        };
        for word in self.preserve.iter().flat_map(|list| list.split(',')) {
            match word {
                "mode" => preserve.mode = true,
                "ownership" => preserve.owner = true,
                "timestamps" => preserve.times = true,
                "links" => preserve.links = true,
                "xattr" => preserve.xattrs = true,
                "context" => {}
                "all" => {
                    preserve = Preserve {
                        mode: true,
                        owner: true,
                        times: true,
                        links: true,
                        xattrs: true,
                    }
                }
                _ => bail!("invalid argument '{word}' for '--preserve'"),
            }
        }
        let is_recursive = self.recursive || self.archive;
        let form = match (self.link, self.symbolic_link) {
            (true, _) => Form::HardLink,
            (_, true) => Form::Symlink,
            _ => Form::Copy,
        };
        let is_tree = self.archive || (self.recursive && !self.link);
        let follow = match is_tree || self.d || self.no_dereference {
            _ if self.dereference => Follow::Yes,
            true => Follow::No,
            false => Follow::Yes,
        };
        Ok(Options {
            skips_symlinks: false,
            is_recursive,
            follow,
            preserve,
            sparse: self.sparse,
            reflink: self.reflink,
            form,
            existing: match (self.no_clobber, self.interactive) {
                (true, _) => Existing::Keep,
                (_, true) => Existing::Ask,
                _ => Existing::Replace,
            },
            update: match self.u {
                true => Update::Older,
                false => self.update.unwrap_or_default(),
            },
            one_file_system: self.one_file_system,
            force: self.force,
            is_verbose: self.verbose,
        })
    }
}

/// Operands and the place that they go to, which is opened first, to be written.
pub fn operands(
    session: &Session<'_>,
    paths: &[PathBuf],
    into: Option<&PathBuf>,
    sources: OpenMode,
) -> Result<(Vec<Place>, Place)> {
    let (from, to) = match (into, paths) {
        (Some(dir), from) => (from, dir),
        (None, [from @ .., to]) if !from.is_empty() => (from, to),
        (None, [only]) => bail!("missing destination file operand after '{}'", only.display()),
        (None, _) => bail!("missing file operand"),
    };
    if !session.is_image(to) && !from.iter().any(|from| session.is_image(from)) {
        bail!("no path is in an image: name one as IMAGE:/PATH");
    }
    let to = session.place(to, OpenMode::ReadWrite)?;
    let from = from
        .iter()
        .map(|path| session.place(path, sources))
        .collect::<Result<_>>()?;
    Ok((from, to))
}

pub fn run(args: &CpArgs, session: &Session<'_>) -> Result<()> {
    session.read_with(&args.read);
    let options = args.options()?;
    let into = args.target_directory.as_ref();
    let (from, to) = operands(session, &args.paths, into, OpenMode::ReadOnly)?;
    let Some(target) = target(session, to, from.len(), into.is_some(), args.no_target_directory) else {
        return Ok(());
    };
    let mut copier = Copier::new(session, options);
    let is_into_itself = |from: &Place, to: &Place| {
        let (shown_from, shown_to) = (from.quoted(), to.quoted());
        let would_change = options.existing != Existing::Keep && options.form != Form::HardLink;
        if options.is_recursive && would_change && is_one_directory(from, to, options.follow) {
            session.complain(format_args!("{shown_from} and {shown_to} are the same file"));
            return true;
        }
        let is_it = options.is_recursive && to.is_below(from, options.follow);
        if is_it {
            session.complain(format_args!(
                "cannot copy a directory, {shown_from}, into itself, {shown_to}"
            ));
        }
        is_it
    };
    if args.parents {
        let Target::Into(dir) = &target else {
            session.complain("with --parents, the destination must be a directory");
            return Ok(());
        };
        for from in &from {
            if let Some((made, to)) = copier.make_parents(from, dir) {
                if !is_into_itself(from, &to) {
                    copier.copy(from, &to);
                }
                copier.finish_parents(&made);
            }
        }
        return Ok(());
    }
    for from in &from {
        let to = named(&target, from);
        if !is_into_itself(from, &to) {
            copier.copy(from, &to);
        }
    }
    Ok(())
}

fn is_one_directory(from: &Place, to: &Place, follow: Follow) -> bool {
    let (Ok(from_stat), Ok(to_stat)) = (from.stat(follow), to.stat(Follow::No)) else {
        return false;
    };
    from.is_on(to) && from_stat.is_dir() && (from_stat.dev, from_stat.ino) == (to_stat.dev, to_stat.ino)
}
