//! Container images: an OCI image layout (a directory, or an archive of one), and the archives of
//! `docker save`. Their layers are laid over each other, with whiteouts and opaque directories.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::platform::Platform;
use crate::reading::Reading;
use crate::tar::{Blob, Entry, EntryKind, Input, Layering, apply, read_archive};
use crate::tree::{Keep, Tree};

/// Bytes of an index, a manifest, or a list of layers.
const JSON_BYTES_MAX: u64 = 8 << 20;
/// Indices that lie in each other.
const DEPTH_MAX: usize = 4;
/// Bytes hashed at once.
const STEP_BYTES: usize = 1 << 20;

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    platform: Option<ManifestPlatform>,
}

#[derive(Deserialize)]
struct ManifestPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    layers: Vec<String>,
}

/// Files of an image by their paths in it.
pub(crate) enum Files<'f> {
    Dir(&'f Path),
    Archive {
        name: &'f str,
        entries: HashMap<Vec<u8>, Blob>,
    },
}

impl<'f> Files<'f> {
    /// The files of an archive, if it is one of a container image.
    pub fn of_archive(name: &'f str, entries: &[Entry]) -> Option<Self> {
        let mut blobs = HashMap::new();
        for entry in entries {
            let path = entry.path.strip_prefix(b"./").unwrap_or(&entry.path);
            match &entry.kind {
                EntryKind::File(content) => {
                    let (file, start_bytes) = content.in_one()?;
                    let blob = Blob {
                        file,
                        start_bytes,
                        len_bytes: content.size_bytes(),
                        name: String::from_utf8_lossy(path).into_owned(),
                    };
                    blobs.insert(path.to_vec(), blob);
                }
                // docker save names the layer of an earlier image by a link.
                EntryKind::Symlink(target) => {
                    let target = target.strip_prefix(b"../").unwrap_or(target);
                    if let Some(blob) = blobs.get(target).cloned() {
                        blobs.insert(path.to_vec(), blob);
                    }
                }
                EntryKind::Dir => {}
                _ => return None,
            }
        }
        let has = |path: &[u8]| blobs.contains_key(path);
        let is_image = (has(b"oci-layout") && has(b"index.json")) || has(b"manifest.json");
        is_image.then_some(Self::Archive { name, entries: blobs })
    }

    fn name(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Archive { name, .. } => (*name).to_owned(),
        }
    }

    fn refuse(&self, file: &str, what: impl Into<String>) -> Error {
        Error::Entry {
            archive: self.name(),
            entry: file.to_owned(),
            what: what.into(),
        }
    }

    fn find(&self, path: &str) -> Result<Blob> {
        if path.split('/').any(|name| name == "..") || path.starts_with('/') {
            return Err(self.refuse(path, "leads out of the image"));
        }
        match self {
            Self::Dir(dir) => Blob::open(&dir.join(path)),
            Self::Archive { entries, .. } => {
                let blob = entries.get(path.as_bytes()).cloned();
                blob.ok_or_else(|| self.refuse(path, "is not in the archive"))
            }
        }
    }

    fn json<T: for<'d> Deserialize<'d>>(&self, path: &str) -> Result<T> {
        let bytes = self.find(path)?.read_all(JSON_BYTES_MAX)?;
        serde_json::from_slice(&bytes).map_err(|error| self.refuse(path, error.to_string()))
    }

    /// A blob by its digest, which is compared.
    fn blob(&self, descriptor: &Descriptor) -> Result<(String, Blob)> {
        let digest = &descriptor.digest;
        let hex = digest.strip_prefix("sha256:").filter(|hex| {
            let is_hex = hex
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            hex.len() == 64 && is_hex
        });
        let hex = hex.ok_or_else(|| self.refuse(digest, "is no digest that is supported: only sha256 is"))?;
        let path = format!("blobs/sha256/{hex}");
        let blob = self.find(&path)?;
        let found = sha256(&blob)?;
        if found != hex {
            return Err(self.refuse(&path, format!("has the digest {found}")));
        }
        Ok((path, blob))
    }

    fn manifest(&self, platform: &Platform) -> Result<Manifest> {
        let mut index: Index = self.json("index.json")?;
        for _ in 0..DEPTH_MAX {
            let chosen = self.choose(&index, platform)?;
            let (path, _) = self.blob(chosen)?;
            if !chosen.media_type.contains("index") && !chosen.media_type.contains("manifest.list") {
                return self.json(&path);
            }
            index = self.json(&path)?;
        }
        Err(self.refuse("index.json", "indices lie too deep in each other"))
    }

    fn choose<'i>(&self, index: &'i Index, platform: &Platform) -> Result<&'i Descriptor> {
        let fits = |descriptor: &&Descriptor| match &descriptor.platform {
            None => true,
            Some(own) => {
                let variant_fits = platform.variant.is_none() || platform.variant == own.variant;
                own.os == platform.os && own.architecture == platform.architecture && variant_fits
            }
        };
        let mut fitting = index.manifests.iter().filter(fits);
        let wanted = format!("{}/{}", platform.os, platform.architecture);
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(self.refuse("index.json", format!("has no image for {wanted}"))),
            (Some(one), Some(_)) if one.platform.is_some() => Ok(one),
            _ => Err(self.refuse("index.json", "has several images")),
        }
    }

    fn has(&self, path: &str) -> bool {
        match self {
            Self::Dir(dir) => dir.join(path).exists(),
            Self::Archive { entries, .. } => entries.contains_key(path.as_bytes()),
        }
    }

    /// Lays the layers of the image over the tree.
    pub fn add_to(&self, tree: &mut Tree, reading: &mut Reading<'_>, keep: &mut Keep<'_>) -> Result<()> {
        let mut layers = Vec::new();
        if self.has("index.json") {
            for layer in &self.manifest(reading.platform)?.layers {
                if layer.media_type.contains("encrypted") {
                    return Err(self.refuse(&layer.digest, "is encrypted"));
                }
                layers.push(self.blob(layer)?);
            }
        } else {
            let images: Vec<DockerImage> = self.json("manifest.json")?;
            let [image] = &images[..] else {
                return Err(self.refuse("manifest.json", format!("has {} images, not one", images.len())));
            };
            for layer in &image.layers {
                layers.push((layer.clone(), self.find(layer)?));
            }
        }
        for (path, blob) in layers {
            let blob = Blob {
                name: format!("{}: {path}", self.name()),
                ..blob
            };
            let name = blob.name.clone();
            let entries = read_archive(Input::of_blob(blob, reading.spool_dir)?)?;
            apply(tree, &name, entries, Layering::Layer, keep)?;
            if let Some(layers) = &mut reading.layers {
                layers.push(tree.copy_dirs(tree.base())?);
            }
        }
        Ok(())
    }
}

fn sha256(blob: &Blob) -> Result<String> {
    use sha2::Digest as _;
    use std::io::Read as _;
    let mut hash = sha2::Sha256::new();
    let mut reader = blob.reader();
    let mut buf = vec![0; STEP_BYTES];
    loop {
        let len = reader.read(&mut buf).map_err(Error::host(&blob.name))?;
        if len == 0 {
            break;
        }
        hash.update(&buf[..len]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
