//! `cowshed subvolume`: subvolumes and snapshots of a mounted volume, with the words and the output
//! of `btrfs subvolume`.

pub mod calls;
mod list;
mod sync;

use std::path::{Path, PathBuf};
use std::time::Duration;

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
        /// Delete the subvolume of this number; the path is that of a directory on the volume
        #[arg(short = 'i', long, value_name = "ID", conflicts_with = "recursive")]
        subvolid: Option<u64>,
        /// Subvolumes
        #[arg(required = true)]
        subvolumes: Vec<PathBuf>,
    },
    /// List subvolumes
    List(list::ListArgs),
    /// Show which subvolume is mounted where no other is asked for
    GetDefault {
        /// A directory on the volume
        path: PathBuf,
    },
    /// Have a subvolume mounted where no other is asked for
    SetDefault {
        /// A subvolume, or the number of one
        subvolume: PathBuf,
        /// A directory on the volume, with a number
        path: Option<PathBuf>,
    },
    /// Wait until deleted subvolumes are gone
    Sync {
        /// A directory on the volume
        path: PathBuf,
        /// Numbers of subvolumes; all that are deleted now where none is given
        ids: Vec<u64>,
        /// Seconds between two looks
        #[arg(short, default_value_t = 1)]
        seconds: u64,
    },
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
            subvolid,
            subvolumes,
        } => {
            let mut last = None;
            for subvolume in subvolumes {
                let above = match subvolid {
                    Some(id) => delete_by_id(subvolume, *id)?,
                    None => delete(subvolume, *recursive)?,
                };
                if *commit_each {
                    calls::sync(&above)?;
                }
                last = Some(above);
            }
            if let (true, Some(last)) = (*commit_after, last) {
                calls::sync(&last)?;
            }
        }
        What::List(args) => return list::run(args),
        What::Show { subvolume } => return list::show(subvolume),
        What::GetDefault { path } => return list::show_default(path),
        What::SetDefault { subvolume, path } => set_default(subvolume, path.as_deref())?,
        What::Sync { path, ids, seconds } => sync::run(path, ids, Duration::from_secs(*seconds))?,
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

/// Returns a directory of the volume.
fn delete_by_id(path: &Path, id: u64) -> Result<PathBuf> {
    calls::delete_by_id(path, id).with_context(|| format!("{}: subvolume {id} not deleted", path.display()))?;
    println!("Delete subvolume {id}");
    Ok(path.to_owned())
}

fn set_default(subvolume: &Path, path: Option<&Path>) -> Result<()> {
    let (id, path) = match path {
        Some(path) => {
            let number = subvolume.to_str().and_then(|text| text.parse().ok());
            let id = number.with_context(|| format!("{}: not a number", subvolume.display()))?;
            (id, path)
        }
        None => {
            let id = calls::id_of(subvolume).with_context(|| format!("{}: not a subvolume", subvolume.display()))?;
            (id, subvolume)
        }
    };
    calls::set_default(path, id).with_context(|| format!("{}: default not set to {id}", path.display()))
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
