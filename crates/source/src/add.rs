//! Sources of all kinds, told apart by what they hold.

use std::io::Read;
use std::path::Path;

use crate::blob::Blob;
use crate::dir::add_directory;
use crate::error::{Error, Result};
use crate::oci::Files;
use crate::reading::Reading;
use crate::tar::{Entry, Input, Layering, apply, read_archive};
use crate::tree::{Keep, Tree};

/// Adds a source to the tree: a directory, an OCI image layout, a tar archive, an archive of an OCI
/// image layout or of `docker save`. What is compressed is kept in a file
/// without a name.
pub fn add_source(tree: &mut Tree, path: &Path, reading: &mut Reading<'_>, keep: &mut Keep<'_>) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(Error::host(path))?;
    if metadata.is_dir() {
        return match path.join("oci-layout").is_file() && path.join("index.json").is_file() {
            true => Files::Dir(path).add_to(tree, reading, keep),
            false => add_directory(tree, path, reading.workers, keep),
        };
    }
    let name = path.display().to_string();
    let entries = match metadata.is_file() {
        true => {
            let blob = Blob::open(path)?;
            tree.checks_mut().watch(&blob)?;
            read_archive(Input::of_blob(blob, reading.spool_dir)?)?
        }
        false => {
            let stream = std::fs::File::open(path).map_err(Error::host(path))?;
            read_archive(Input::of_stream(&name, Box::new(stream), reading.spool_dir)?)?
        }
    };
    add_entries(tree, &name, entries, reading, keep)
}

/// Adds an archive that comes by a stream, of any kind that [`add_source`] takes.
pub fn add_stream(
    tree: &mut Tree,
    name: &str,
    stream: Box<dyn Read>,
    reading: &mut Reading<'_>,
    keep: &mut Keep<'_>,
) -> Result<()> {
    let entries = read_archive(Input::of_stream(name, stream, reading.spool_dir)?)?;
    add_entries(tree, name, entries, reading, keep)
}

fn add_entries(
    tree: &mut Tree,
    name: &str,
    entries: Vec<Entry>,
    reading: &mut Reading<'_>,
    keep: &mut Keep<'_>,
) -> Result<()> {
    match Files::of_archive(name, &entries) {
        Some(files) => files.add_to(tree, reading, keep),
        None => apply(tree, name, entries, Layering::Plain, keep),
    }
}
