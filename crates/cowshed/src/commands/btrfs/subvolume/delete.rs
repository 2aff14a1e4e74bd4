//! `subvolume delete`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::Args;

use super::super::place::{Cut, Images, Place};
use super::super::roots::{Roots, default_id};
use super::super::say::{Voice, error, reason, warning};
use crate::commands::offline::image_of;

#[derive(Args, Debug)]
pub struct DeleteArgs {
    /// Wait until the deletions are on disk, once at the end
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// Wait after each
    #[arg(short = 'C', long, conflicts_with = "commit_after")]
    commit_each: bool,
    /// Delete the subvolume of this number; the path is that of a directory on the volume
    #[arg(short = 'i', long, value_name = "ID", conflicts_with = "recursive")]
    subvolid: Option<u64>,
    /// Delete the subvolumes nested in them first
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Accepted
    #[arg(short, long)]
    verbose: bool,
    /// Subvolumes
    #[arg(required = true)]
    subvolumes: Vec<PathBuf>,
}

/// The default subvolume is not deleted.
#[derive(Debug, thiserror::Error)]
#[error("not deleting default subvolume id {id} '{shown}'")]
struct IsDefault {
    id: u64,
    shown: String,
}

/// One run of the command.
struct Run<'a> {
    args: &'a DeleteArgs,
    voice: Voice,
    images: Images,
}

pub fn run(args: &DeleteArgs, voice: Voice) -> Result<u8> {
    if args.subvolid.is_some() && args.subvolumes.len() != 1 {
        bail!("exactly 1 argument expected, {} given", args.subvolumes.len());
    }
    let images = match voice.is_dry_run {
        true => Images::to_read(),
        false => Images::to_write(),
    };
    let mut run = Run { args, voice, images };
    let (mut code, mut touched) = (0, Vec::new());
    for path in &args.subvolumes {
        let done = match args.subvolid {
            Some(id) => run.by_id(path, id),
            None => run.by_path(path),
        };
        match done {
            Ok(dir) if args.commit_after && !voice.is_dry_run => touched.push(dir),
            Ok(_) => {}
            Err(failed) => {
                match failed.downcast_ref::<IsDefault>() {
                    Some(is_default) => warning(is_default),
                    None => error(format_args!("{failed:#}")),
                }
                code = 1;
            }
        }
    }
    for dir in &touched {
        if let Err(failed) = dir.commit() {
            error(format_args!(
                "unable to do final sync after deletion: {}",
                reason(&failed)
            ));
            code = 1;
        }
    }
    drop(touched);
    run.images.close()?;
    Ok(code)
}

impl Run<'_> {
    /// Returns the directory that it was in.
    fn by_path(&mut self, path: &Path) -> Result<Place> {
        let whole = match image_of(path) {
            Some(_) => path.to_owned(),
            None => match path.canonicalize() {
                Ok(whole) => whole,
                Err(error) => bail!("Could not statfs: {}", reason(&error)),
            },
        };
        let (root, id) = self.images.subvolume(&whole)?;
        if self.args.recursive {
            // What cannot be deleted loses nothing of what is nested in it.
            self.checked(&whole, id)?;
            self.nested(&root, id, &whole)?;
        }
        // A deleted subvolume goes when nothing has it open.
        drop(root);
        self.one(&whole, id)
    }

    /// Deletes what is nested in a subvolume, the innermost first.
    fn nested(&mut self, root: &Place, id: u64, path: &Path) -> Result<()> {
        let of_volume = |error| anyhow!("cannot list subvolumes: {}", reason(&error));
        let roots = Roots::load(root).map_err(of_volume)?;
        for nested in roots.nested(id).into_iter().rev() {
            let below = roots.path(nested, id).map_err(of_volume)?;
            let whole = path.join(OsStr::from_bytes(&below));
            // The path may lead elsewhere: onto another mount, or names have changed.
            if self.images.subvolume(&whole)?.1 != nested.id {
                bail!(
                    "'{}' is not subvolume {}: something is mounted there",
                    whole.display(),
                    nested.id
                );
            }
            self.one(&whole, nested.id)?;
        }
        Ok(())
    }

    /// Where a subvolume lies, and its name as it is printed. Errors: it cannot be deleted.
    fn checked(&mut self, path: &Path, id: u64) -> Result<(Cut, Place, String)> {
        let cut = Cut::new(path);
        let dir = self.images.directory(&cut.dir)?;
        let shown = format!("{}/{}", cut.shown.display(), cut.name.display());
        self.check_default(&dir, id, &shown)?;
        Ok((cut, dir, shown))
    }

    /// Deletes a subvolume. Returns the directory that it was in.
    fn one(&mut self, path: &Path, id: u64) -> Result<Place> {
        let (cut, dir, shown) = self.checked(path, id)?;
        self.say(&format!("'{shown}'"));
        if !self.voice.is_dry_run {
            self.done(dir.delete(&cut.name))?;
            self.commit(&dir)?;
        }
        Ok(dir)
    }

    fn by_id(&mut self, path: &Path, id: u64) -> Result<Place> {
        let dir = self.images.directory(path)?;
        let known = Roots::load(&dir).ok().and_then(|roots| {
            let root = roots.find(id).filter(|root| !root.is_deleted())?;
            roots.path(root, 0).ok()
        });
        let mut shown = OsString::from(path);
        shown.push("/");
        shown.push(OsStr::from_bytes(known.as_deref().unwrap_or_default()));
        self.check_default(&dir, id, &shown.display().to_string())?;
        match known {
            Some(_) => self.say(&format!("'{}'", shown.display())),
            None => self.say(&format!("subvolid={id}")),
        }
        if !self.voice.is_dry_run {
            self.done(dir.delete_by_id(id))?;
            self.commit(&dir)?;
        }
        Ok(dir)
    }

    fn say(&self, what: &str) {
        let when = match self.args.commit_after || self.args.commit_each {
            true => "commit",
            false => "no-commit",
        };
        self.voice.line(format_args!("Delete subvolume ({when}): {what}"));
    }

    fn check_default(&self, dir: &Place, id: u64, shown: &str) -> Result<()> {
        match default_id(dir) {
            Ok(default) if default == id => {
                let shown = shown.to_owned();
                return Err(IsDefault { id, shown }.into());
            }
            Ok(_) => {}
            Err(error) => warning(format_args!("cannot read default subvolume id: {}", reason(&error))),
        }
        Ok(())
    }

    fn done(&self, deleted: std::io::Result<()>) -> Result<()> {
        let Err(failed) = deleted else {
            return Ok(());
        };
        if failed.raw_os_error() == Some(libc::EPERM) {
            warning("deletion failed with EPERM, you don't have permissions or send may be in progress");
        }
        bail!("Could not destroy subvolume/snapshot: {}", reason(&failed));
    }

    fn commit(&self, dir: &Place) -> Result<()> {
        if !self.args.commit_each {
            return Ok(());
        }
        dir.commit()
            .map_err(|failed| anyhow!("unable to commit after deletion: {}", reason(&failed)))
    }
}
