//! What processes may use of a mount without a request: Linux tells the server of no working
//! directory, of no open directory, and of no descriptor that only names a file. /proc does, and
//! nothing is asked of the mount, nor of any other file system.

use std::collections::HashSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Looks take a tenth of a processor at most.
const PAUSE_FACTOR: u32 = 10;

/// The first namespace of process numbers: who is in it sees all processes.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Looks for what is held of one mount.
#[derive(Debug)]
pub struct Looks {
    /// The number of the mount's device, as mount tables have it.
    device: String,
    /// Processes of all users may hold something.
    is_for_all: bool,
    /// When the last look ended, and how long it took.
    last: Mutex<Option<(Instant, Duration)>>,
}

impl Looks {
    pub fn new(device: String, is_for_all: bool) -> Looks {
        Looks {
            device,
            is_for_all,
            last: Mutex::new(None),
        }
    }

    /// Inode numbers of what processes hold. `None`: that is not to be seen from here, or the last
    /// look was a moment ago.
    pub fn look(&self) -> Option<Vec<u64>> {
        let mut last = self.last.lock();
        let begin = Instant::now();
        if last.is_some_and(|(end, took)| begin.duration_since(end) < PAUSE_FACTOR * took) {
            return None;
        }
        let found = self.all_held();
        if let Err(error) = &found {
            tracing::debug!(%error, "what processes hold of the mount is not known");
        }
        *last = Some((Instant::now(), begin.elapsed()));
        Some(found.ok()?.into_iter().collect())
    }

    fn all_held(&self) -> io::Result<HashSet<u64>> {
        // Of another namespace, or none at all.
        if read_link("/proc/self")? != Path::new(&std::process::id().to_string()) {
            return Err(io::Error::other("/proc is that of other processes"));
        }
        // Others than those of this user do not come in otherwise.
        if self.is_for_all && read_link("/proc/self/ns/pid")? != Path::new(FIRST_PID_NAMESPACE) {
            return Err(io::Error::other("not all processes can be seen from here"));
        }
        let (major, minor) = self
            .device
            .split_once(':')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| io::Error::other("the mount's device is not known"))?;
        let mut look = Look {
            device: (major, minor),
            held: HashSet::new(),
            tables: HashSet::new(),
        };
        // Other users do not come in, or can be seen.
        let may_be_passed_over = !self.is_for_all || crate::sys::is_root();
        for entry in read_dir("/proc")? {
            let entry = entry?;
            let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
            if !is_process {
                continue;
            }
            match look.at_process(&entry.path(), &self.device) {
                Ok(()) => {}
                // It has ended.
                Err(error) if is_gone(&error) => {}
                // Of another user, or with more rights than the superuser has here.
                Err(error) if error.kind() == ErrorKind::PermissionDenied && may_be_passed_over => {}
                Err(error) => return Err(error),
            }
        }
        Ok(look.held)
    }
}

fn is_gone(error: &io::Error) -> bool {
    let no_such_process = io::Error::from(rustix::io::Errno::SRCH).raw_os_error();
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == no_such_process
}

struct Look {
    device: (u32, u32),
    held: HashSet<u64>,
    /// Mount namespaces that were looked at.
    tables: HashSet<PathBuf>,
}

impl Look {
    fn at_process(&mut self, process: &Path, device: &str) -> io::Result<()> {
        let descriptors = read_dir(process.join("fd"))?;
        for name in ["cwd", "root"] {
            self.at(&process.join(name))?;
        }
        for descriptor in descriptors {
            self.at(&descriptor?.path())?;
        }
        let namespace = read_link(process.join("ns/mnt"))?;
        if self.tables.insert(namespace) {
            let table = read_to_string(process.join("mountinfo"))?;
            if has_parts_elsewhere(&table, device) {
                return Err(io::Error::other("a directory of the mount is mounted elsewhere"));
            }
        }
        Ok(())
    }

    /// Of a link of /proc. What it leads to is not asked for its attributes.
    fn at(&mut self, link: &Path) -> io::Result<()> {
        match statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
            Ok(found) => {
                if (found.stx_dev_major, found.stx_dev_minor) == self.device {
                    self.held.insert(found.stx_ino);
                }
                Ok(())
            }
            // It was closed; the process has ended, or is one of the kernel's.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Does a mount table have a mount of a part of the device? See proc_pid_mountinfo(5).
fn has_parts_elsewhere(table: &str, device: &str) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split(' ').skip(2);
        fields.next() == Some(device) && fields.next() != Some("/")
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::linux::fs::MetadataExt as _;

    use super::*;

    /// The number of the device of a path, as mount tables have it.
    fn device_of(path: &Path) -> String {
        let device = path.metadata().unwrap().st_dev();
        format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
    }

    #[test]
    fn descriptors_are_seen_while_they_are_open_and_looks_have_pauses() {
        let dir = tempfile::tempdir().unwrap();
        let number = dir.path().metadata().unwrap().st_ino();
        let looks = || Looks::new(device_of(dir.path()), false);
        if has_parts_elsewhere(&read_to_string("/proc/self/mountinfo").unwrap(), &device_of(dir.path())) {
            return eprintln!("skipped: parts of the file system of temporary files are mounted elsewhere");
        }
        assert!(!looks().look().unwrap().contains(&number));
        let open = File::open(dir.path()).unwrap();
        assert!(looks().look().unwrap().contains(&number));
        drop(open);
        let twice = looks();
        assert!(!twice.look().unwrap().contains(&number));
        assert!(twice.look().is_none(), "at once");
        let (_, took) = twice.last.lock().unwrap();
        std::thread::sleep(PAUSE_FACTOR * took);
        assert!(twice.look().is_some());
    }

    #[test]
    fn parts_of_a_mount_elsewhere_are_seen() {
        let table = "22 28 0:20 / /sys rw - sysfs sysfs rw\n95 22 0:41 / /mnt rw - fuse.cowshed image rw\n";
        assert!(!has_parts_elsewhere(table, "0:41"));
        let bound = format!("{table}96 22 0:41 /a /srv rw - fuse.cowshed image rw\n");
        assert!(has_parts_elsewhere(&bound, "0:41"));
        assert!(!has_parts_elsewhere(&bound, "0:20"));
    }

    #[test]
    fn nothing_is_known_without_a_device() {
        assert!(Looks::new("strange".into(), false).look().is_none());
    }
}
