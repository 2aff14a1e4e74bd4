//! `cowshed subvolume`: subvolumes and snapshots of a mounted volume, with the words and the output
//! of `btrfs subvolume`.

pub mod calls;
mod list;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub struct SubvolumeArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make empty subvolumes
    Create {
        /// Make missing directories above them, too
        #[arg(short, long)]
        parents: bool,
        /// Where they shall be
        #[arg(required = true)]
        dests: Vec<PathBuf>,
    },
    /// Make a snapshot of a subvolume
    Snapshot {
        /// Nothing in it can be changed
        #[arg(short, long)]
        readonly: bool,
        /// A subvolume
        source: PathBuf,
        /// Where the snapshot shall be; in a directory that exists it gets the source's name
        dest: PathBuf,
    },
    /// Delete subvolumes and all that is in them
    Delete {
        /// Wait until the deletions are on disk, once at the end
        #[arg(short = 'c', long)]
        commit_after: bool,
        /// Wait after each
        #[arg(short = 'C', long, conflicts_with = "commit_after")]
        commit_each: bool,
        /// Delete the subvolumes nested in them first
        #[arg(short = 'R', long)]
        recursive: bool,
        /// Subvolumes
        #[arg(required = true)]
        subvolumes: Vec<PathBuf>,
    },
    /// List subvolumes
    List(list::ListArgs),
    /// Show what is known of a subvolume
    Show {
        /// A subvolume
        subvolume: PathBuf,
    },
}

pub fn run(args: &SubvolumeArgs) -> Result<u8> {
    match &args.what {
        What::Create { parents, dests } => dests.iter().try_for_each(|dest| create(dest, *parents))?,
        What::Snapshot { readonly, source, dest } => snapshot(source, dest, *readonly)?,
        What::Delete {
            commit_after,
            commit_each,
            recursive,
            subvolumes,
        } => {
            for subvolume in subvolumes {
                let above = delete(subvolume, *recursive)?;
                if *commit_each {
                    calls::sync(&above)?;
                }
            }
            if let (true, Some(last)) = (*commit_after, subvolumes.last()) {
                calls::sync(&split(last)?.0)?;
            }
        }
        What::List(args) => return list::run(args),
        What::Show { subvolume } => return list::show(subvolume),
    }
    Ok(0)
}

/// The directory of a path, and the name in it.
fn split(path: &Path) -> Result<(PathBuf, &std::ffi::OsStr)> {
    let Some(name) = path.file_name() else {
        bail!("{}: ends in no name", path.display());
    };
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((above, name))
}

fn create(dest: &Path, parents: bool) -> Result<()> {
    let (above, name) = split(dest)?;
    if parents {
        std::fs::create_dir_all(&above).with_context(|| above.display().to_string())?;
    }
    if dest.symlink_metadata().is_ok() {
        bail!("{}: target path already exists", dest.display());
    }
    calls::create(&above, name).with_context(|| format!("{}: no subvolume made", dest.display()))?;
    println!("Create subvolume '{}'", dest.display());
    Ok(())
}

fn snapshot(source: &Path, dest: &Path, readonly: bool) -> Result<()> {
    let dest = match dest.is_dir() {
        true => {
            let whole = source.canonicalize().with_context(|| source.display().to_string())?;
            dest.join(split(&whole)?.1)
        }
        false => dest.to_owned(),
    };
    let (above, name) = split(&dest)?;
    calls::snapshot(source, &above, name, readonly)
        .with_context(|| format!("{}: no snapshot made of {}", dest.display(), source.display()))?;
    let kind = if readonly { "readonly snapshot" } else { "snapshot" };
    println!("Create {kind} of '{}' in '{}'", source.display(), dest.display());
    Ok(())
}

/// Returns the directory that it was in.
fn delete(subvolume: &Path, recursive: bool) -> Result<PathBuf> {
    let whole = subvolume
        .canonicalize()
        .with_context(|| subvolume.display().to_string())?;
    let (above, name) = split(&whole)?;
    if recursive {
        for nested in list::nested(&whole)? {
            delete(&nested, false)?;
        }
    }
    calls::delete(&above, name).with_context(|| format!("{}: not deleted", subvolume.display()))?;
    println!("Delete subvolume '{}'", subvolume.display());
    Ok(above)
}
