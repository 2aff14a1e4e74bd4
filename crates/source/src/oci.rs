//! Container images: an OCI image layout (a directory, or an archive of one), and the archives of
//! `docker save`. Their layers are laid over each other, with whiteouts and opaque directories.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use sha2::Digest as _;

use crate::blob::Blob;
use crate::checks::{Sealed, hex};
use crate::error::{Error, Result};
use crate::named::{REF_NAME, is_docker_name};
use crate::platform::Platform;
use crate::reading::Reading;
use crate::tar::{Entry, EntryKind, Input, Layering, apply, read_archive};
use crate::tree::{Keep, Tree};

/// Bytes of an index, a manifest, or a list of layers.
const JSON_BYTES_MAX: u64 = 8 << 20;
/// Indices that lie in each other.
const DEPTH_MAX: usize = 4;

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
    #[serde(default)]
    annotations: HashMap<String, String>,
}

impl Descriptor {
    /// The names that an index gives an image: the one of the format, and that of containerd.
    fn names(&self) -> impl Iterator<Item = &str> {
        let keys = [REF_NAME, "io.containerd.image.name"];
        keys.into_iter()
            .filter_map(|key| Some(self.annotations.get(key)?.as_str()))
    }
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
    /// `null` where the image has no tag.
    repo_tags: Option<Vec<String>>,
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
        self.parse(path, &self.find(path)?.read_all(JSON_BYTES_MAX)?)
    }

    fn parse<T: for<'d> Deserialize<'d>>(&self, path: &str, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes).map_err(|error| self.refuse(path, error.to_string()))
    }

    /// A blob by its digest, which is not compared here, with its path in the image.
    fn sealed(&self, descriptor: &Descriptor) -> Result<(String, Sealed)> {
        let digest = &descriptor.digest;
        let sha256 = digest.strip_prefix("sha256:").filter(|hex| {
            let is_hex = hex
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            hex.len() == 64 && is_hex
        });
        let sha256 = sha256.ok_or_else(|| self.refuse(digest, "is no digest that is supported: only sha256 is"))?;
        let path = format!("blobs/sha256/{sha256}");
        let blob = Blob {
            name: format!("{}: {path}", self.name()),
            ..self.find(&path)?
        };
        let sha256 = sha256.to_owned();
        Ok((path, Sealed { blob, sha256 }))
    }

    /// An index or a manifest by its digest, which is compared.
    fn sealed_json<T: for<'d> Deserialize<'d>>(&self, descriptor: &Descriptor) -> Result<T> {
        let (path, sealed) = self.sealed(descriptor)?;
        let bytes = sealed.blob.read_all(JSON_BYTES_MAX)?;
        let found = hex(&sha2::Sha256::digest(&bytes));
        if found != sealed.sha256 {
            let blob = sealed.blob.name;
            return Err(Error::Digest { blob, found });
        }
        self.parse(&path, &bytes)
    }

    fn manifest(&self, platform: &Platform, reference: Option<&str>) -> Result<Manifest> {
        let mut index: Index = self.json("index.json")?;
        if let Some(wanted) = reference {
            let is_wanted = |descriptor: &Descriptor| descriptor.names().any(|name| name == wanted);
            if !index.manifests.iter().any(is_wanted) {
                let names = list_names(index.manifests.iter().map(Descriptor::names));
                return Err(self.refuse("index.json", has_none(wanted, &names)));
            }
            index.manifests.retain(is_wanted);
        }
        for _ in 0..DEPTH_MAX {
            let chosen = self.choose(&index, platform)?;
            if !chosen.media_type.contains("index") && !chosen.media_type.contains("manifest.list") {
                return self.sealed_json(chosen);
            }
            index = self.sealed_json(chosen)?;
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
            _ => {
                let names = list_names(index.manifests.iter().map(Descriptor::names));
                Err(self.refuse("index.json", several(&names)))
            }
        }
    }

    fn has(&self, path: &str) -> bool {
        match self {
            Self::Dir(dir) => dir.join(path).exists(),
            Self::Archive { entries, .. } => entries.contains_key(path.as_bytes()),
        }
    }

    /// Lays the layers of the image over the tree. Their digests are computed meanwhile: they are
    /// known to be right when [`Tree::check_sources`] has succeeded. `reference`: the image's name,
    /// where there are several.
    pub fn add_to(
        &self,
        reference: Option<&str>,
        tree: &mut Tree,
        reading: &mut Reading<'_>,
        keep: &mut Keep<'_>,
    ) -> Result<()> {
        let layers = self.layers(reference, tree, reading)?;
        let laid = layers
            .into_iter()
            .try_for_each(|layer| lay_over(layer, tree, reading, keep));
        if laid.is_err() {
            // A damaged layer: a wrong digest says more than the place where reading ended.
            tree.check_sources()?;
        }
        laid
    }

    /// The one image, or the one that is wanted.
    fn docker_image<'i>(&self, images: &'i [DockerImage], reference: Option<&str>) -> Result<&'i DockerImage> {
        let tags = |image: &'i DockerImage| image.repo_tags.iter().flatten().map(String::as_str);
        let names = || list_names(images.iter().map(tags));
        let refuse = |what| Err(self.refuse("manifest.json", what));
        match (reference, images) {
            (Some(wanted), _) => {
                let mut named = images.iter();
                let found = named.find(|image| tags(image).any(|own| is_docker_name(own, wanted)));
                found.map_or_else(|| refuse(has_none(wanted, &names())), Ok)
            }
            (None, [one]) => Ok(one),
            (None, []) => refuse("has no image".into()),
            (None, _) => refuse(several(&names())),
        }
    }

    /// The layers, the lowest first.
    fn layers(&self, reference: Option<&str>, tree: &mut Tree, reading: &Reading<'_>) -> Result<Vec<Blob>> {
        if !self.has("index.json") {
            let images: Vec<DockerImage> = self.json("manifest.json")?;
            let image = self.docker_image(&images, reference)?;
            let layer = |path: &String| {
                let name = format!("{}: {path}", self.name());
                let found = self.find(path)?;
                Ok(Blob { name, ..found })
            };
            return image.layers.iter().map(layer).collect();
        }
        let mut all = Vec::new();
        for layer in &self.manifest(reading.platform, reference)?.layers {
            if layer.media_type.contains("encrypted") {
                return Err(self.refuse(&layer.digest, "is encrypted"));
            }
            all.push(self.sealed(layer)?.1);
        }
        let layers: Vec<Blob> = all.iter().map(|sealed| sealed.blob.clone()).collect();
        // An archive is watched as a whole.
        if let Self::Dir(_) = self {
            layers.iter().try_for_each(|layer| tree.checks_mut().watch(layer))?;
        }
        tree.checks_mut().begin(all, reading.env);
        Ok(layers)
    }
}

/// The names of all images.
fn list_names<'n, N: Iterator<Item = &'n str>>(images: impl Iterator<Item = N>) -> String {
    let mut names: Vec<_> = images.flatten().collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => "none with a name".into(),
        false => names.join(", "),
    }
}

fn has_none(wanted: &str, names: &str) -> String {
    format!("has no image {wanted:?}; it has {names}")
}

fn several(names: &str) -> String {
    format!("has several images ({names}): name one, as in PATH:NAME")
}

fn lay_over(layer: Blob, tree: &mut Tree, reading: &mut Reading<'_>, keep: &mut Keep<'_>) -> Result<()> {
    let name = layer.name.clone();
    let entries = read_archive(Input::of_blob(layer, reading.spool_dir)?)?;
    apply(tree, &name, entries, Layering::Layer, keep)?;
    if let Some(layers) = &mut reading.layers {
        layers.push(tree.copy_dirs(tree.base())?);
    }
    Ok(())
}
