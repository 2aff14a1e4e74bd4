//! The administrator's switch for FUSE over io_uring (Linux 6.14 and later).

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};

use crate::need;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Shared lock: FUSE over io_uring is in use. Holds what the switch was before its first user.
const LOCK: &str = "cowshed-enable-uring.lock";

/// How requests reach the mounts of a run: `--transport uring|dev`. While it lives, its mounts can
/// be made.
#[derive(Debug)]
pub struct Transport {
    /// The mount option, or nothing.
    pub option: String,
    _on: Option<UringOn>,
}

impl Transport {
    /// As asked for on the command line; without a wish, as the mount chooses. `None`, with a line
    /// that says so, where the kernel does not have it.
    ///
    /// # Errors
    /// There is no such transport, or its switch cannot be set.
    pub fn new(wish: Option<&str>) -> Result<Option<Transport>> {
        let (option, _on) = match wish {
            None => (String::new(), None),
            Some("dev") => ("transport=dev".to_owned(), None),
            Some("uring") => match UringOn::new()? {
                None => return Ok(None),
                on => ("transport=uring".to_owned(), on),
            },
            Some(other) => anyhow::bail!("--transport {other}: there are uring and dev"),
        };
        Ok(Some(Transport { option, _on }))
    }

    /// Mount options with its own.
    pub fn with(&self, options: &str) -> String {
        match (options, &self.option[..]) {
            (options, "") => options.to_owned(),
            ("", option) => option.to_owned(),
            (options, option) => format!("{options},{option}"),
        }
    }
}

/// New mounts may be served over io_uring as long as this value lives. Several processes may each
/// have one: the last one puts the switch back.
#[derive(Debug)]
pub struct UringOn(File);

impl UringOn {
    /// `None`, with a line that says so, where this kernel has no FUSE over io_uring.
    ///
    /// # Errors
    /// The switch cannot be set.
    pub fn new() -> Result<Option<UringOn>> {
        if need::require(Path::new(SWITCH).exists(), "FUSE over io_uring in the kernel").is_none() {
            return Ok(None);
        }
        let path = std::env::temp_dir().join(LOCK);
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        loop {
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let before = std::fs::read(SWITCH).context(SWITCH)?;
                lock.set_len(0)?;
                lock.rewind()?;
                lock.write_all(&before)?;
                std::fs::write(SWITCH, "1").context(SWITCH)?;
            }
            flock(&lock, FlockOperation::LockShared)?;
            // Its last user may have put it back before this lock was granted.
            if is_on()? {
                return Ok(Some(UringOn(lock)));
            }
            flock(&lock, FlockOperation::Unlock)?;
        }
    }
}

fn is_on() -> Result<bool> {
    Ok(std::fs::read_to_string(SWITCH).context(SWITCH)?.trim() == "Y")
}

impl Drop for UringOn {
    fn drop(&mut self) {
        if flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut before = String::new();
        let read = self.0.rewind().and_then(|()| self.0.read_to_string(&mut before));
        if let Err(error) = read.and_then(|_| std::fs::write(SWITCH, &before)) {
            eprintln!("{SWITCH} was {}: {error}", before.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_on_as_long_as_a_value_lives() {
        let Some(()) = need::root() else { return };
        let Some(first) = UringOn::new().unwrap() else { return };
        let second = UringOn::new().unwrap().unwrap();
        drop(first);
        assert!(is_on().unwrap());
        drop(second);
    }
}
