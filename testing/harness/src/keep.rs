//! Images of failures, kept to be looked at: runs with threads, and those in which the kernel
//! writes, do not come back.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Error;
use cowshed_device::MemDevice;

/// The directory in which images of failures are kept. It is made with the first of them.
#[derive(Clone, Debug)]
pub struct Keep(PathBuf);

impl Keep {
    /// The one that was asked for, or one of this process among the temporary ones.
    pub fn new(asked: Option<PathBuf>) -> Keep {
        let own = || std::env::temp_dir().join(format!("cowshed-kept-{}", std::process::id()));
        Keep(asked.unwrap_or_else(own))
    }

    /// The failure, with a line that says where the devices of its volume are kept and how to look
    /// at them.
    #[must_use]
    pub fn devices<'d>(&self, name: &str, devices: impl IntoIterator<Item = &'d MemDevice>, failure: Error) -> Error {
        let saves = devices.into_iter().map(|device| |path: &Path| device.save(path));
        self.all(name, saves, failure)
    }

    /// The same of image files.
    #[must_use]
    pub fn files(&self, name: &str, images: &[impl AsRef<Path>], failure: Error) -> Error {
        let copies = images.iter().map(|image| {
            // Holes stay holes: images are far larger than what is in them.
            |path: &Path| {
                let paths = [image.as_ref(), path].map(Path::as_os_str);
                let args = ["--sparse=always".as_ref()].into_iter().chain(paths);
                let done = crate::run("cp", &args.collect::<Vec<_>>());
                done.map(drop).map_err(io::Error::other)
            }
        });
        self.all(name, copies, failure)
    }

    fn all<S: FnOnce(&Path) -> io::Result<()>>(
        &self,
        name: &str,
        images: impl Iterator<Item = S>,
        failure: Error,
    ) -> Error {
        match self.save(name, images, &failure) {
            Ok(words) => failure.context(format!("what failed is kept, see it again: cowshed check{words}")),
            // The failure matters more than its image.
            Err(error) => failure.context(format!("what failed cannot be kept in {}: {error}", self.0.display())),
        }
    }

    /// Gives the paths, each behind a space.
    fn save<S: FnOnce(&Path) -> io::Result<()>>(
        &self,
        name: &str,
        images: impl Iterator<Item = S>,
        failure: &Error,
    ) -> io::Result<String> {
        std::fs::create_dir_all(&self.0)?;
        let mut words = String::new();
        for (index, save) in images.enumerate() {
            let path = self.0.join(format!("{name}.{index}.img"));
            save(&path)?;
            words += &format!(" {}", path.display());
        }
        std::fs::write(self.0.join(format!("{name}.txt")), format!("{failure:#}\n"))?;
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use cowshed_device::BlockDevice as _;

    use super::*;

    fn device(fill: u8) -> MemDevice {
        let device = MemDevice::new("memory", 1 << 20);
        device.write_at(4096, &[fill; 4096]).unwrap();
        device
    }

    /// The paths that the failure names.
    fn named(failure: &Error) -> Vec<PathBuf> {
        let text = format!("{failure:#}");
        let words = text.split("cowshed check ").nth(1).expect("it says how to look");
        let words = words.split(": ").next().expect("a first word");
        words.split(' ').map(PathBuf::from).collect()
    }

    #[test]
    fn all_devices_are_kept_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let keep = Keep::new(Some(dir.path().join("made/now")));
        let failure = keep.devices("run-7", &[device(1), device(2)], anyhow!("the reason"));
        let paths = named(&failure);
        assert_eq!(paths.len(), 2);
        for (path, fill) in paths.iter().zip([1, 2]) {
            let bytes = std::fs::read(path).unwrap();
            assert_eq!((bytes.len(), bytes[4096]), (1 << 20, fill));
        }
        let text = std::fs::read_to_string(dir.path().join("made/now/run-7.txt")).unwrap();
        assert!(text.contains("the reason") && format!("{failure:#}").contains("the reason"));

        let again = Keep::new(Some(dir.path().join("copies"))).files("copy", &paths, anyhow!("another"));
        let copies = named(&again);
        for (path, copy) in paths.iter().zip(&copies) {
            assert!(std::fs::read(path).unwrap() == std::fs::read(copy).unwrap());
        }
        assert_eq!(copies.len(), 2);
    }

    #[test]
    fn a_failure_is_told_where_nothing_can_be_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let keep = Keep::new(Some(file.path().join("below-a-file")));
        let failure = format!("{:#}", keep.devices("run", &[device(1)], anyhow!("the reason")));
        assert!(
            failure.contains("cannot be kept") && failure.contains("the reason"),
            "{failure}"
        );
    }

    #[test]
    fn without_a_directory_one_is_made_and_named() {
        let keep = Keep::new(None);
        let failure = keep.devices("run", &[device(1)], anyhow!("the reason"));
        let paths = named(&failure);
        assert!(paths[0].starts_with(std::env::temp_dir()) && paths[0].exists());
        std::fs::remove_dir_all(&keep.0).unwrap();
    }
}
