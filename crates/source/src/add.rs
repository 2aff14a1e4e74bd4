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
/// Of a layout or an archive with several images, `PATH:REFERENCE` names one, and container images
/// may be named as skopeo does (`oci:PATH:REFERENCE`), where nothing has such a path.
pub fn add_source(tree: &mut Tree, path: &Path, reading: &mut Reading<'_>, keep: &mut Keep<'_>) -> Result<()> {
    let Named { path, reference } = Named::of(path);
    let (path, reference) = (path.as_path(), reference.as_deref());
    let metadata = std::fs::metadata(path).map_err(Error::host(path))?;
    if metadata.is_dir() {
        let is_layout = path.join("oci-layout").is_file() && path.join("index.json").is_file();
        return match (is_layout, reference) {
            (true, _) => Files::Dir(path).add_to(reference, tree, reading, keep),
            (false, None) => add_directory(tree, path, reading.workers, keep),
            (false, Some(reference)) => Err(no_image(&path.display().to_string(), reference)),
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
    add_entries(tree, (&name, reference), entries, reading, keep)
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
    add_entries(tree, (name, None), entries, reading, keep)
}

fn add_entries(
    tree: &mut Tree,
    (name, reference): (&str, Option<&str>),
    entries: Vec<Entry>,
    reading: &mut Reading<'_>,
    keep: &mut Keep<'_>,
) -> Result<()> {
    match (Files::of_archive(name, &entries), reference) {
        (Some(files), _) => files.add_to(reference, tree, reading, keep),
        (None, None) => apply(tree, name, entries, Layering::Plain, keep),
        (None, Some(reference)) => Err(no_image(name, reference)),
    }
}

fn no_image(source: &str, reference: &str) -> Error {
    Error::Entry {
        archive: source.to_owned(),
        entry: reference.to_owned(),
        what: "is no image of it: the source is no container image".into(),
    }
}
