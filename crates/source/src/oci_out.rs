//! Writes an OCI image layout with one layer, as a directory or as an archive of one. The same
//! layer gives the same bytes.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::named::REF_NAME;
use crate::platform::Platform;
use crate::tar::{TarKind, TarWriter};
use crate::tree::Meta;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Where a layout goes.
pub enum Target<'t> {
    /// A directory that is made, or an empty one.
    Dir(&'t Path),
    /// An archive.
    Archive {
        /// Gets the archive.
        out: Box<dyn Write + 't>,
        /// A directory with room for the layer.
        spool_dir: &'t Path,
    },
}

/// The layer of an image, kept in a file without a name until it is complete: its digest names it.
pub struct OciWriter<'t> {
    out: Out<'t>,
    layer: File,
    hash: Sha256,
    size_bytes: u64,
}

impl std::fmt::Debug for OciWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OciWriter")
            .field("size_bytes", &self.size_bytes)
            .finish()
    }
}

impl Write for OciWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.layer.write_all(bytes)?;
        self.hash.update(bytes);
        self.size_bytes += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.layer.flush()
    }
}

impl<'t> OciWriter<'t> {
    /// What is written to it is the layer, an archive.
    ///
    /// # Errors
    /// Those of the file systems; a directory that is not empty.
    pub fn new(target: Target<'t>) -> io::Result<Self> {
        let (out, spool_dir) = match target {
            Target::Dir(dir) => (Out::Dir(LayoutDir::create(dir)?), dir),
            Target::Archive { out, spool_dir } => (Out::Archive(TarWriter::new(out)), spool_dir),
        };
        Ok(Self {
            layer: tempfile::tempfile_in(spool_dir)?,
            out,
            hash: Sha256::new(),
            size_bytes: 0,
        })
    }

    /// Writes the image, with a name in its index where there is to be one. Gives the digest of its
    /// layer, without compression: its diff id.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, platform: &Platform, tag: Option<&str>) -> io::Result<String> {
        self.layer.seek(SeekFrom::Start(0))?;
        let layer = hex(&self.hash.finalize());
        let digest = format!("sha256:{layer}");
        let config = bytes_of(&json!({
            "architecture": platform.architecture,
            "os": platform.os,
            "config": {},
            "rootfs": { "type": "layers", "diff_ids": [digest] },
        }));
        let descriptor = |kind: &str, bytes: &[u8]| json!({ "mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len() });
        let manifest = bytes_of(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": [{ "mediaType": LAYER, "digest": digest, "size": self.size_bytes }],
        }));
        let mut described = descriptor(MANIFEST, &manifest);
        if let Some(tag) = tag {
            described["annotations"] = json!({ REF_NAME: tag });
        }
        let index = bytes_of(&json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [described],
        }));
        let mut out = self.out;
        let blob = |hex: &str| format!("blobs/sha256/{hex}");
        out.file("oci-layout", &mut &br#"{"imageLayoutVersion":"1.0.0"}"#[..], 30)?;
        out.dir("blobs")?;
        out.dir("blobs/sha256")?;
        for bytes in [&config, &manifest] {
            out.file(&blob(&sha256(bytes)), &mut &bytes[..], bytes.len() as u64)?;
        }
        out.file(&blob(&layer), &mut self.layer, self.size_bytes)?;
        out.file("index.json", &mut &index[..], index.len() as u64)?;
        out.finish()?;
        Ok(digest)
    }
}

enum Out<'t> {
    Dir(LayoutDir),
    Archive(TarWriter<Box<dyn Write + 't>>),
}

impl Out<'_> {
    fn dir(&mut self, path: &str) -> io::Result<()> {
        match self {
            Self::Dir(dir) => dir.make(path, |path| fs::create_dir(path)),
            Self::Archive(tar) => tar.entry(path.as_bytes(), &meta(0o755), TarKind::Dir),
        }
    }

    fn file(&mut self, path: &str, from: &mut dyn Read, size_bytes: u64) -> io::Result<()> {
        match self {
            Self::Dir(dir) => {
                let mut file = dir.make(path, |path| File::create_new(path))?;
                io::copy(from, &mut file)?;
                Ok(())
            }
            Self::Archive(tar) => {
                let data = [(0, size_bytes)];
                let kind = TarKind::File {
                    size_bytes,
                    data: &data,
                };
                tar.entry(path.as_bytes(), &meta(0o644), kind)?;
                let mut buf = vec![0; 1 << 20];
                loop {
                    match from.read(&mut buf)? {
                        0 => return Ok(()),
                        got => tar.data(&buf[..got])?,
                    }
                }
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Dir(dir) => {
                dir.take_made();
                Ok(())
            }
            Self::Archive(tar) => tar.finish().map(drop),
        }
    }
}

/// What was made in directories whose layouts are not complete, in the order in which it was made,
/// each with the number of its layout.
static MADE: Mutex<Vec<(u64, PathBuf)>> = Mutex::new(Vec::new());
static LAYOUTS: AtomicU64 = AtomicU64::new(0);

fn made() -> MutexGuard<'static, Vec<(u64, PathBuf)>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory that becomes a layout. Nothing in it is replaced: another process may make a layout
/// there after this one has found the directory empty. Goes again unless the layout becomes
/// complete.
struct LayoutDir {
    path: PathBuf,
    number: u64,
}

impl LayoutDir {
    fn create(path: &Path) -> io::Result<Self> {
        let layout = Self {
            path: path.to_owned(),
            number: LAYOUTS.fetch_add(1, Ordering::Relaxed),
        };
        let mut made = made();
        let is_new = !path.try_exists()?;
        fs::create_dir_all(path)?;
        if is_new {
            made.push((layout.number, path.to_owned()));
        }
        drop(made);
        match fs::read_dir(path)?.next() {
            Some(_) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            None => Ok(layout),
        }
    }

    fn make<T>(&self, path: &str, create: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let path = self.path.join(path);
        let mut made = made();
        let created = create(&path)?;
        made.push((self.number, path));
        Ok(created)
    }

    fn take_made(&self) -> Vec<PathBuf> {
        let mut made = made();
        let own = made.extract_if(.., |(number, _)| *number == self.number);
        own.map(|(_, path)| path).collect()
    }
}

impl Drop for LayoutDir {
    fn drop(&mut self) {
        remove(&self.take_made());
    }
}

fn remove(made: &[PathBuf]) {
    for path in made.iter().rev() {
        // A file or an empty directory. The caller gets the error that has led here.
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
    }
}

/// Nothing more is made in a layout while this lives.
#[must_use = "dropped at once, it stops nothing"]
pub struct Stopped(#[expect(dead_code, reason = "it is held")] MutexGuard<'static, Vec<(u64, PathBuf)>>);

impl std::fmt::Debug for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopped")
    }
}

/// Removes what this process has made of layouts that are not complete, for a process that ends
/// without returning, as by a signal.
pub fn remove_unfinished_layouts() -> Stopped {
    let mut made = made();
    let all: Vec<_> = made.drain(..).map(|(_, path)| path).collect();
    remove(&all);
    Stopped(made)
}

fn meta(mode: u32) -> Meta {
    Meta {
        mode,
        ..Meta::default()
    }
}

fn bytes_of(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(dir: &Path) -> TarWriter<OciWriter<'_>> {
        TarWriter::of_layer(OciWriter::new(Target::Dir(dir)).unwrap())
    }

    fn names(dir: &Path) -> Vec<std::ffi::OsString> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|name| name.unwrap().file_name())
            .collect();
        names.sort();
        names
    }

    /// `remove_unfinished_layouts` means those of other tests, too.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn of_an_image_that_a_signal_interrupts_nothing_stays() {
        let _alone = ALONE.lock();
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("layout");
        let layout = LayoutDir::create(&dir).unwrap();
        layout.make("blobs", |path| fs::create_dir(path)).unwrap();
        layout.make("blobs/half", |path| fs::write(path, "half")).unwrap();
        drop(remove_unfinished_layouts());
        assert!(names(scratch.path()).is_empty());
        drop(layout);
        drop(layer(&dir));
        assert!(names(scratch.path()).is_empty());
    }

    #[test]
    fn of_two_images_in_one_directory_the_first_to_be_complete_stays() {
        let _alone = ALONE.lock();
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("layout");
        let (first, second) = (layer(&dir), layer(&dir));
        let finish = |layer: TarWriter<OciWriter<'_>>, tag| {
            let layer = layer.finish().unwrap();
            layer.finish(&Platform::default(), Some(tag)).map(drop)
        };
        finish(second, "second").unwrap();
        let index = fs::read(dir.join("index.json")).unwrap();
        let error = finish(first, "first").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(&dir), ["blobs", "index.json", "oci-layout"]);
        assert_eq!(fs::read(dir.join("index.json")).unwrap(), index);
        assert_eq!(names(&dir.join("blobs/sha256")).len(), 3);
    }

    #[test]
    fn of_an_image_that_is_given_up_only_what_was_there_before_stays() {
        let _alone = ALONE.lock();
        let scratch = tempfile::tempdir().unwrap();
        drop(layer(&scratch.path().join("new")));
        drop(layer(scratch.path()));
        assert!(names(scratch.path()).is_empty());

        // The index cannot be written.
        let layer = layer(scratch.path()).finish().unwrap();
        fs::create_dir(scratch.path().join("index.json")).unwrap();
        layer.finish(&Platform::default(), None).unwrap_err();
        assert_eq!(names(scratch.path()), ["index.json"]);
    }
}
