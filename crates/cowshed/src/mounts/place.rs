//! Where the process that has a volume listens: one socket name for each device, made of what
//! identifies it.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a device is, whatever its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(String);

impl Identity {
    /// Of an image file, or of a block device. A loop device is its image.
    pub fn of(path: &Path) -> io::Result<Identity> {
        let meta = std::fs::metadata(path)?;
        if !meta.file_type().is_block_device() {
            return Ok(Identity::of_file(&meta));
        }
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let image = image_of_loop_device(major, minor).and_then(|image| std::fs::metadata(image).ok());
        Ok(match image {
            Some(image) if image.file_type().is_file() => Identity::of_file(&image),
            Some(below) if below.file_type().is_block_device() => Identity::of_device(below.rdev()),
            _ => Identity::of_device(meta.rdev()),
        })
    }

    fn of_file(meta: &Metadata) -> Identity {
        Identity(format!("{:x}-{:x}", meta.dev(), meta.ino()))
    }

    fn of_device(number: u64) -> Identity {
        Identity(format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
    }

    fn socket_name(&self) -> String {
        format!("{}.sock", self.0)
    }
}

/// The file behind a loop device that shows all of it.
fn image_of_loop_device(major: u32, minor: u32) -> Option<PathBuf> {
    let about = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/loop"));
    let read = |name: &str| std::fs::read_to_string(about.join(name)).ok();
    let is_whole = read("offset")?.trim() == "0" && read("sizelimit")?.trim() == "0";
    is_whole.then_some(PathBuf::from(read("backing_file")?.trim_end_matches('\n')))
}

/// The directory of this user's sockets.
fn own_directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/cowshed".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir).join("cowshed"),
        _ => PathBuf::from(format!("/tmp/cowshed-{}", user.as_raw())),
    }
}

/// Where this user's process listens for a volume. Makes the directory.
///
/// # Errors
/// The directory cannot be made, or others may write to it.
pub fn to_listen(identity: &Identity) -> io::Result<PathBuf> {
    let dir = own_directory();
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    match is_own(&dir)? {
        true => Ok(dir.join(identity.socket_name())),
        false => Err(io::Error::other(format!(
            "{} belongs to another user, or others may write to it",
            dir.display()
        ))),
    }
}

/// A directory, no link, of this user and closed to others.
fn is_own(dir: &Path) -> io::Result<bool> {
    let meta = std::fs::symlink_metadata(dir)?;
    let is_closed = meta.permissions().mode() & 0o077 == 0;
    Ok(meta.is_dir() && is_closed && meta.uid() == rustix::process::geteuid().as_raw())
}

/// Where processes may listen that would serve this user: its own, and for root those of all users
/// that are logged in.
pub fn to_connect(identity: &Identity) -> Vec<PathBuf> {
    let own = own_directory();
    let mut dirs: Vec<PathBuf> = is_own(&own).unwrap_or(false).then_some(own).into_iter().collect();
    if rustix::process::geteuid().is_root()
        && let Ok(users) = std::fs::read_dir("/run/user")
    {
        dirs.extend(users.flatten().map(|user| user.path().join("cowshed")));
    }
    let sockets = dirs.into_iter().map(|dir| dir.join(identity.socket_name()));
    sockets.filter(|socket| is_socket(socket)).collect()
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_a_file_are_the_file_and_copies_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), b"a").unwrap();
        std::fs::copy(path("a"), path("b")).unwrap();
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        let of = |name: &str| Identity::of(&path(name)).unwrap();
        assert_eq!(of("a"), of("link"));
        assert_eq!(of("a"), of("hard"));
        assert_ne!(of("a"), of("b"));
        assert!(Identity::of(&path("none")).is_err());
    }
}
