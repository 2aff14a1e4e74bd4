//! Sources of all kinds, told apart by what they hold.

use std::io::Read;
use std::path::Path;

use crate::blob::Blob;
use crate::dir::add_directory;
use crate::error::{Error, Result};
use crate::named::Named;
use crate::oci::Files;
use crate::reading::Reading;
use crate::tar::{Entry, Input, Layering, apply, read_archive};
use crate::tree::{Keep, Tree};

/// Adds a source to the tree: a directory, an OCI image layout, a tar archive, an archive of an OCI
/// image layout or of `docker save`. What is compressed is kept in a file without a name.
///
/// `PATH:REFERENCE` selects one image of a layout or an archive with several. skopeo's form of that
/// (`oci:PATH:REFERENCE`) is read, too. A path that exists as it is written comes first.
pub fn add_source(tree: &mut Tree, path: &Path, reading: &mut Reading<'_>, keep: &mut Keep<'_>) -> Result<()> {
    let named = Named::of(path);
    let path = named.path.as_path();
    let metadata = std::fs::metadata(path).map_err(Error::host(path))?;
    if metadata.is_dir() {
        let is_layout = path.join("oci-layout").is_file() && path.join("index.json").is_file();
        return match is_layout {
            true => Files::Dir(path).add_to(named.reference.as_deref(), tree, reading, keep),
            false if named.is_image => Err(no_image(path)),
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
    add_entries(tree, &name, entries, Some(&named), reading, keep)
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
    add_entries(tree, name, entries, None, reading, keep)
}

/// `named`: how a source was named that has a path.
fn add_entries(
    tree: &mut Tree,
    name: &str,
    entries: Vec<Entry>,
    named: Option<&Named>,
    reading: &mut Reading<'_>,
    keep: &mut Keep<'_>,
) -> Result<()> {
    match (Files::of_archive(name, &entries), named) {
        (Some(files), _) => files.add_to(named.and_then(|named| named.reference.as_deref()), tree, reading, keep),
        (None, Some(named)) if named.is_image => Err(no_image(&named.path)),
        (None, _) => apply(tree, name, entries, Layering::Plain, keep),
    }
}

/// The source was named as a container image, and is none.
fn no_image(path: &Path) -> Error {
    Error::host(path)(std::io::Error::other("no container image"))
}
