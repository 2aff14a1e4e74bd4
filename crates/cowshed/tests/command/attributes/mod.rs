//! Attributes that a mount changes by itself are not served from the kernel's attribute cache
//! afterwards: docs/design/fuse-caches.md.

mod audit;
mod random;
mod setid;
mod view;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cowshed_harness::need;
use rustix::fs::{AtFlags, CWD, Gid, StatxFlags, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::mount::{Guard, unmount};
use crate::support::{Scratch, run};

/// A caller of file operations. The superuser has all capabilities, others none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

pub const ROOT: User = User { uid: 0, gid: 0 };
/// Owner of the files, member of their group.
pub const OWNER: User = User { uid: 1000, gid: 1000 };
/// Neither.
pub const STRANGER: User = User { uid: 2000, gid: 2000 };

/// Runs `f` with the ids of a user, without supplementary groups. Linux keeps ids for each thread:
/// this takes one of its own.
pub fn act_as<T: Send>(user: User, f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            f()
        });
        acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The mode that the kernel knows. Asks for nothing else: an attribute that the kernel knows to be
/// old makes it fetch all.
pub fn known_mode(path: &Path) -> u32 {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MODE).unwrap();
    u32::from(stat.stx_mode) & 0o7777
}

/// All attributes, after which the kernel has a fresh copy of each.
pub fn refresh(path: &Path) {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(CWD, path, flags, StatxFlags::ALL).unwrap();
}

/// `cowshed mount` of a volume of its own, with a directory `d` that all users may write to.
pub struct OurMount {
    pub scratch: Scratch,
    pub dir: PathBuf,
    options: &'static str,
}

impl OurMount {
    pub fn new(options: &'static str) -> OurMount {
        let scratch = Scratch::new();
        run("mkfs -q -f -b 1g {}", &[&scratch.image]).ok();
        let dir = scratch.mountpoint();
        fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mount = OurMount { scratch, dir, options };
        mount.mount();
        make_shared_dir(&mount.dir);
        mount
    }

    fn mount(&self) {
        run(
            &format!("mount -o {} {{}} {{}}", self.options),
            &[&self.scratch.image, &self.dir],
        )
        .ok();
    }

    pub fn remount(&self) {
        unmount(&self.dir);
        self.mount();
    }

    pub fn shared(&self) -> PathBuf {
        self.dir.join("d")
    }

    pub fn end(self) {
        unmount(&self.dir);
        self.scratch.assert_clean();
    }
}

impl Drop for OurMount {
    fn drop(&mut self) {
        drop(Guard(&self.dir));
    }
}

pub fn make_shared_dir(root: &Path) -> PathBuf {
    let dir = root.join("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// Whether this kernel passes the operation of this name on to the mount. A line says so where it
/// does not.
pub fn is_passed_on(name: &str) -> bool {
    match name {
        "zero" | "zero and keep the size" => need::zeroed_ranges().is_some(),
        "create with O_TMPFILE" => need::nameless_files().is_some(),
        _ => true,
    }
}

/// The kinds of mounts of the superuser: of a block device, and not, and without requests for
/// opens.
pub const KINDS: [&str; 3] = ["suid", "suid,noloop", "suid,no_open"];

pub fn can_run() -> Option<()> {
    need::root()?;
    need::fuse()?;
    need::kernel_btrfs()
}
