//! What processes may use of a mount without a request: Linux tells the server of no working
//! directory, of no open directory, and of no descriptor that only names a file. /proc does. A link
//! of /proc is not read further than to the device it leads to, unless that is the mount's: other
//! file systems may have to ask a server that does not answer, and that is waited for here.

use std::collections::HashSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cowshed_vfs::Held;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use crate::mount::mount_table;

/// Looks take a tenth of a processor at most.
const PAUSE_FACTOR: u32 = 10;

/// A look that takes longer counts as none; the next begins when it has ended.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// The first namespace of process numbers: all processes are seen there.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Looks for what is held of one mount.
#[derive(Debug)]
pub struct Looks {
    /// The number of the mount's device, as mount tables have it.
    device: String,
    /// When the last look ended, and how long it took.
    last: Mutex<Option<(Instant, Duration)>>,
    is_looking: Arc<AtomicBool>,
}

impl Looks {
    pub fn new(device: String) -> Looks {
        Looks {
            device,
            last: Mutex::new(None),
            is_looking: Arc::default(),
        }
    }

    /// Inode numbers of what processes hold.
    pub fn look(&self) -> Held<Vec<u64>> {
        let mut last = self.last.lock();
        let begin = Instant::now();
        let is_soon = last.is_some_and(|(end, took)| begin.duration_since(end) < PAUSE_FACTOR * took);
        if is_soon || self.is_looking.swap(true, Ordering::AcqRel) {
            return Held::NotNow;
        }
        let (found, is_found) = mpsc::channel();
        let (device, is_looking) = (self.device.clone(), self.is_looking.clone());
        let look = move || {
            // What one pass misses, because it moves from one place to another meanwhile, the other
            // one finds.
            let both = all_held(&device).and_then(|one| Ok((one, all_held(&device)?)));
            is_looking.store(false, Ordering::Release);
            // It may have been given up.
            let _ = found.send(both);
        };
        let started = std::thread::Builder::new().name("fuse-held".into()).spawn(look);
        let found = match started {
            Ok(_) => is_found
                .recv_timeout(LOOK_MAX)
                .unwrap_or_else(|error| Err(io::Error::other(error))),
            Err(error) => {
                self.is_looking.store(false, Ordering::Release);
                Err(error)
            }
        };
        *last = Some((Instant::now(), begin.elapsed()));
        match found {
            Ok((one, other)) => Held::Found(one.union(&other).copied().collect()),
            Err(error) => {
                tracing::debug!(%error, "what processes hold of the mount is not known");
                Held::Unknown
            }
        }
    }
}

fn all_held(device: &str) -> io::Result<HashSet<u64>> {
    // Of another namespace, or none at all.
    if read_link("/proc/self")? != Path::new(&std::process::id().to_string()) {
        return Err(io::Error::other("/proc is that of other processes"));
    }
    let table = mount_table()?;
    let Users { owner, are_all } = users_of(&table, device)?;
    let is_seen = match are_all {
        true => read_link("/proc/self/ns/pid")? == Path::new(FIRST_PID_NAMESPACE) && may_look_into_all()?,
        // Processes of its user that hide from that user are of programs that keep secrets, and of
        // servers of other machines' users.
        false => owner == rustix::process::geteuid().as_raw() || may_look_into_all()?,
    };
    if !is_seen {
        return Err(io::Error::other("not all processes can be looked into from here"));
    }
    let number = device.split_once(':');
    let number = number.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let mut look = Look {
        device: number.ok_or_else(|| io::Error::other("the mount's device is not known"))?,
        held: HashSet::new(),
        tables: HashSet::new(),
    };
    for entry in read_dir("/proc")? {
        let entry = entry?;
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_process {
            continue;
        }
        match look.at_process(&entry.path(), device) {
            Ok(()) => {}
            // It has ended.
            Err(error) if is_gone(&error) => {}
            // See above; one with more rights than the superuser has here.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(look.held)
}

/// The users that may use a mount.
struct Users {
    owner: u32,
    are_all: bool,
}

/// Of the mount of this device, by a mount table. See proc_pid_mountinfo(5).
fn users_of(table: &str, device: &str) -> io::Result<Users> {
    let line = table.lines().find(|line| line.split(' ').nth(2) == Some(device));
    let options = line.and_then(|line| line.rsplit(' ').next());
    let mut options = options.unwrap_or_default().split(',');
    let owner = options.clone().find_map(|option| option.strip_prefix("user_id="));
    let owner = owner.and_then(|owner| owner.parse().ok());
    Ok(Users {
        owner: owner.ok_or_else(|| io::Error::other("the mount is not in the table of mounts"))?,
        are_all: options.any(|option| option == "allow_other"),
    })
}

/// Also into processes of other users.
fn may_look_into_all() -> io::Result<bool> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::SYS_PTRACE))
}

fn is_gone(error: &io::Error) -> bool {
    let no_such_process = io::Error::from(Errno::SRCH).raw_os_error();
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == no_such_process
}

struct Look {
    device: (u32, u32),
    held: HashSet<u64>,
    /// Mount namespaces that were looked at.
    tables: HashSet<PathBuf>,
}

impl Look {
    /// Descriptors first: one may become the working directory, and be closed.
    fn at_process(&mut self, process: &Path, device: &str) -> io::Result<()> {
        for descriptor in read_dir(process.join("fd"))? {
            self.at(&descriptor?.path())?;
        }
        // Each has its own, where they do not share it.
        for thread in read_dir(process.join("task"))? {
            let thread = thread?.path();
            for name in ["cwd", "root"] {
                self.at(&thread.join(name))?;
            }
        }
        let namespace = read_link(process.join("ns/mnt"))?;
        if !self.tables.contains(&namespace) {
            let table = read_to_string(process.join("mountinfo"))?;
            if has_parts_elsewhere(&table, device) {
                return Err(io::Error::other("a directory of the mount is mounted elsewhere"));
            }
            self.tables.insert(namespace);
        }
        Ok(())
    }

    /// What a link of /proc leads to. The mount is not asked for attributes.
    fn at(&mut self, link: &Path) -> io::Result<()> {
        let look = |mask| statx(CWD, link, AtFlags::STATX_DONT_SYNC, mask);
        let is_there = |error: &Errno| ![Errno::NOENT, Errno::SRCH].contains(error);
        match look(StatxFlags::empty()) {
            Ok(found) if (found.stx_dev_major, found.stx_dev_minor) == self.device => {}
            Ok(_) => return Ok(()),
            // It was closed; the process has ended, or is one of the kernel's.
            Err(error) if !is_there(&error) => return Ok(()),
            // A process that cannot be looked into has no list of descriptors, so this is of the
            // file system that it leads to, which another user has mounted or which has failed.
            Err(_) => return Ok(()),
        }
        match look(StatxFlags::INO) {
            Ok(found) => {
                self.held.insert(found.stx_ino);
                Ok(())
            }
            Err(error) if !is_there(&error) => Ok(()),
            Err(error) => Err(io::Error::other(format!(
                "the mount does not tell the number of {}: {error}",
                link.display()
            ))),
        }
    }
}

/// Does a mount table have a mount of a part of the device, or an overlay with a layer there? Layers
/// with relative paths are not seen.
fn has_parts_elsewhere(table: &str, device: &str) -> bool {
    let mounts = || table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let ours = |fields: &Vec<&str>| fields.get(2) == Some(&device);
    let is_part = |fields: &Vec<&str>| fields.get(3) != Some(&"/");
    if mounts().any(|fields| ours(&fields) && is_part(&fields)) {
        return true;
    }
    let places: Vec<_> = mounts()
        .filter(ours)
        .filter_map(|fields| fields.get(4).copied())
        .collect();
    let is_there = |path: &str| {
        let below = |place: &&str| {
            path.strip_prefix(place)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        places.iter().any(below)
    };
    mounts().any(|fields| {
        let mut about = fields.iter().skip_while(|field| **field != "-").skip(1);
        about.next() == Some(&"overlay")
            && about.flat_map(|options| options.split(',')).any(|option| {
                let dirs = ["lowerdir=", "lowerdir+=", "upperdir=", "workdir="];
                let dirs = dirs.iter().find_map(|name| option.strip_prefix(name));
                dirs.is_some_and(|dirs| dirs.split(':').any(is_there))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw\n\
        95 22 0:41 / /mnt rw - fuse.cowshed image rw,user_id=0,group_id=0,default_permissions,allow_other\n\
        96 22 0:42 / /home/a/mnt rw - fuse.cowshed other rw,user_id=1000,group_id=1000\n";

    #[test]
    fn parts_of_a_mount_elsewhere_are_seen() {
        assert!(!has_parts_elsewhere(TABLE, "0:41"));
        let bound = format!("{TABLE}97 22 0:41 /a /srv rw - fuse.cowshed image rw\n");
        assert!(has_parts_elsewhere(&bound, "0:41"));
        assert!(!has_parts_elsewhere(&bound, "0:20"));
        let layered = |lower: &str| {
            let options = format!("lowerdir={lower},upperdir=/var/u,workdir=/var/w");
            has_parts_elsewhere(
                &format!("{TABLE}98 22 0:50 / /merged rw - overlay overlay rw,{options}\n"),
                "0:41",
            )
        };
        assert!(layered("/mnt") && layered("/usr/l:/mnt/a/b"));
        assert!(!layered("/mnt2:/usr/mnt"));
    }

    #[test]
    fn users_of_a_mount_are_read_from_the_table() {
        let users = |device| users_of(TABLE, device).map(|users| (users.owner, users.are_all)).ok();
        assert_eq!(users("0:41"), Some((0, true)));
        assert_eq!(users("0:42"), Some((1000, false)));
        assert_eq!([users("0:20"), users("0:4")], [None, None]);
    }

    #[test]
    fn nothing_is_known_without_a_mount_and_looks_have_pauses() {
        let looks = Looks::new("0:0".into());
        assert_eq!(looks.look(), Held::Unknown);
        let (_, took) = looks.last.lock().unwrap();
        *looks.last.lock() = Some((Instant::now(), Duration::from_secs(100)));
        assert_eq!(looks.look(), Held::NotNow);
        assert!(took < LOOK_MAX);
        assert!(!looks.is_looking.load(Ordering::Relaxed));
    }
}
