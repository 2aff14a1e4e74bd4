//! Sources of all kinds, told apart by what they hold.

use std::io::Read;
use std::path::Path;

use crate::dir::add_directory;
use crate::error::{Error, Result};
use crate::oci::{Files, Platform};
use crate::tar::{Blob, Entry, Input, Layering, apply, read_archive};
use crate::tree::{Keep, Tree};

/// Adds a source to the tree: a directory, an OCI image layout, a tar archive, an archive of an OCI
/// image layout or of `docker save`. What is compressed is kept in `spool_dir`, in a file without a
/// name.
pub fn add_source(
    tree: &mut Tree,
    path: &Path,
    platform: &Platform,
    spool_dir: &Path,
    keep: &mut Keep<'_>,
) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(Error::host(path))?;
    if metadata.is_dir() {
        return match path.join("oci-layout").is_file() && path.join("index.json").is_file() {
            true => Files::Dir(path).add_to(tree, platform, spool_dir, keep),
            false => add_directory(tree, path, keep),
        };
    }
    let name = path.display().to_string();
    let entries = match metadata.is_file() {
        true => read_archive(Input::of_blob(Blob::open(path)?, spool_dir)?)?,
        false => {
            let stream = std::fs::File::open(path).map_err(Error::host(path))?;
            read_archive(Input::of_stream(&name, Box::new(stream), spool_dir)?)?
        }
    };
    add_entries(tree, &name, entries, platform, spool_dir, keep)
}

/// Adds an archive that comes by a stream, of any kind that [`add_source`] takes.
pub fn add_stream(
    tree: &mut Tree,
    name: &str,
    stream: Box<dyn Read>,
    platform: &Platform,
    spool_dir: &Path,
    keep: &mut Keep<'_>,
) -> Result<()> {
    let entries = read_archive(Input::of_stream(name, stream, spool_dir)?)?;
    add_entries(tree, name, entries, platform, spool_dir, keep)
}

fn add_entries(
    tree: &mut Tree,
    name: &str,
    entries: Vec<Entry>,
    platform: &Platform,
    spool_dir: &Path,
    keep: &mut Keep<'_>,
) -> Result<()> {
    match Files::of_archive(name, &entries) {
        Some(files) => files.add_to(tree, platform, spool_dir, keep),
        None => apply(tree, name, entries, Layering::Plain, keep),
    }
}
