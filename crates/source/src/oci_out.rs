//! Writes an OCI image layout with one layer, as a directory or as an archive of one. The same
//! layer gives the same bytes.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

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
    Archive(Box<dyn Write + 't>),
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
    /// What is written to it is the layer, an archive. A target that is a directory is made, and has
    /// room for the layer; that of an archive is kept in `spool_dir`.
    ///
    /// # Errors
    /// Those of the file systems; a directory that is not empty.
    pub fn new(target: Target<'t>, spool_dir: &Path) -> io::Result<Self> {
        let out = Out::new(target)?;
        let spool_dir = match &out {
            Out::Dir(dir) => &dir.path,
            Out::Archive(_) => spool_dir,
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

impl<'t> Out<'t> {
    fn new(target: Target<'t>) -> io::Result<Self> {
        Ok(match target {
            Target::Dir(dir) => Self::Dir(LayoutDir::create(dir)?),
            Target::Archive(out) => Self::Archive(TarWriter::new(out)),
        })
    }

    fn dir(&mut self, path: &str) -> io::Result<()> {
        match self {
            Self::Dir(dir) => fs::create_dir_all(dir.path.join(path)),
            Self::Archive(tar) => tar.entry(path.as_bytes(), &meta(0o755), TarKind::Dir),
        }
    }

    fn file(&mut self, path: &str, from: &mut dyn Read, size_bytes: u64) -> io::Result<()> {
        match self {
            Self::Dir(dir) => {
                let mut file = File::create(dir.path.join(path))?;
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
            Self::Dir(mut dir) => {
                dir.is_complete = true;
                Ok(())
            }
            Self::Archive(tar) => tar.finish().map(drop),
        }
    }
}

/// A directory that becomes a layout. What is in it goes again unless the layout becomes complete.
struct LayoutDir {
    path: PathBuf,
    /// It was not there before.
    is_new: bool,
    is_complete: bool,
}

impl LayoutDir {
    fn create(path: &Path) -> io::Result<Self> {
        let is_new = !path.try_exists()?;
        fs::create_dir_all(path)?;
        if fs::read_dir(path)?.next().is_some() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        Ok(Self {
            path: path.to_owned(),
            is_new,
            is_complete: false,
        })
    }
}

impl Drop for LayoutDir {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // The error that is on its way says more than one of these.
        for name in ["index.json", "oci-layout"] {
            let _ = fs::remove_file(self.path.join(name));
        }
        let _ = fs::remove_dir_all(self.path.join("blobs"));
        if self.is_new {
            let _ = fs::remove_dir(&self.path);
        }
    }
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
