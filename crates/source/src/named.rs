//! How a source is named: a path, and for container images as skopeo does it, too:
//! `[oci:|oci-archive:|docker-archive:]PATH[:REFERENCE]`.

use std::path::{Path, PathBuf};

/// What skopeo and podman put before a path: the source is a container image. Which form it has is
/// found out by its contents.
const TRANSPORTS: &[&str] = &["oci:", "oci-archive:", "docker-archive:"];

/// The annotation that names an image in an index.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A source as it was named.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub path: PathBuf,
    /// A transport or a reference says that the source is a container image.
    pub is_image: bool,
    /// Which image of a layout or an archive with several.
    pub reference: Option<String>,
}

impl Named {
    /// A text that is the path of something is that path. Otherwise the longest beginning that is
    /// one is the path.
    pub fn of(path: &Path) -> Self {
        let as_it_is = Self {
            path: path.to_owned(),
            is_image: false,
            reference: None,
        };
        let Some(text) = path.to_str().filter(|_| !exists(path)) else {
            return as_it_is;
        };
        let rest = TRANSPORTS.iter().find_map(|transport| text.strip_prefix(transport));
        let text = rest.unwrap_or(text);
        let colons = text.rmatch_indices(':').map(|(at, _)| at);
        let found = std::iter::once(text.len())
            .chain(colons)
            .find(|at| exists(Path::new(&text[..*at])));
        found.map_or(as_it_is, |at| Self {
            path: text[..at].into(),
            is_image: true,
            reference: text.get(at + 1..).map(str::to_owned),
        })
    }
}

fn exists(path: &Path) -> bool {
    // A broken symbolic link is the path that was meant, too.
    path.symlink_metadata().is_ok()
}

/// Whether an image's name in an archive of `docker save` is the wanted one. A name without a tag
/// has the tag `latest`, and names of Docker's own registry may be short.
pub(crate) fn is_docker_name(own: &str, wanted: &str) -> bool {
    let short = |name: &str| {
        let name = name.strip_prefix("docker.io/").unwrap_or(name);
        let name = name.strip_prefix("library/").unwrap_or(name);
        let has_tag = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
        if has_tag {
            name.to_owned()
        } else {
            format!("{name}:latest")
        }
    };
    short(own) == short(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_path_that_exists_comes_before_a_reference() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["lay", "odd:name", "odd"] {
            std::fs::write(at(name), b"").unwrap();
        }
        let named = |text: &str| {
            let text = text.replace('@', dir.path().to_str().unwrap());
            let Named {
                path,
                is_image,
                reference,
            } = Named::of(Path::new(&text));
            assert_eq!(
                is_image,
                reference.is_some() || text.starts_with("oci:") && path != Path::new(&text)
            );
            let path = path.to_str().unwrap().replace(dir.path().to_str().unwrap(), "@");
            (path, reference)
        };
        let both = |path: &str, reference: &str| (path.to_owned(), Some(reference.to_owned()));
        let path = |path: &str| (path.to_owned(), None);
        assert_eq!(named("@/lay"), path("@/lay"));
        assert_eq!(named("@/lay:two"), both("@/lay", "two"));
        assert_eq!(named("oci:@/lay"), path("@/lay"));
        assert_eq!(named("docker-archive:@/lay:host/name:1"), both("@/lay", "host/name:1"));
        assert_eq!(named("@/odd:name"), path("@/odd:name"));
        assert_eq!(named("@/odd:name:tag"), both("@/odd:name", "tag"));
        assert_eq!(named("@/odd:nam"), both("@/odd", "nam"));
        assert_eq!(named("@/none:tag"), path("@/none:tag"));
        assert_eq!(named("oci:@/none"), path("oci:@/none"));
    }

    #[test]
    fn docker_names_are_short_or_whole() {
        for (own, wanted) in [
            ("debian:12", "debian:12"),
            ("docker.io/library/debian:12", "debian:12"),
            ("debian:latest", "docker.io/library/debian"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
        ] {
            assert!(is_docker_name(own, wanted), "{own} {wanted}");
        }
        assert!(!is_docker_name("debian:12", "debian"));
        assert!(!is_docker_name("a/debian:12", "debian:12"));
    }
}
