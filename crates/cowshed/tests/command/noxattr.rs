//! Mounts with `noxattr`: no extended attributes are shown, and those that a volume has stay and
//! keep what they are for.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cowshed_harness::need;
use rustix::fs::{FallocateFlags, XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;

use crate::attributes::{OWNER, STRANGER, act_as};
use crate::mount::{Guard, can_mount, unmount};
use crate::support::{Scratch, run};

const CAPABILITY: &str = "security.capability";
/// `vfs_cap_data` of version 2 with CAP_NET_RAW permitted.
const CAPABILITY_VALUE: [u8; 20] = [0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn mount(volume: &Scratch, options: &str) -> PathBuf {
    let dir = volume.mountpoint();
    run(&format!("mount -o {options} {{}} {{}}"), &[&volume.image, &dir]).ok();
    dir
}

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 256];
    let length = lgetxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

type Change = fn(&Path);

/// After each the file has no capabilities.
const CHANGES: [(&str, Change); 4] = [
    ("written", |file| open(file).write_all_at(b"new", 0).unwrap()),
    ("shortened", |file| open(file).set_len(2).unwrap()),
    ("punched", |file| {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(open(file), punch, 0, 2).unwrap();
    }),
    ("given", |file| chown(file, Some(STRANGER.uid), None).unwrap()),
];

fn open(file: &Path) -> fs::File {
    OpenOptions::new().write(true).open(file).unwrap()
}

#[test]
fn mounts_without_extended_attributes_keep_those_of_the_volume() {
    let Some(()) = can_mount().and_then(|()| need::root()) else {
        return;
    };
    if need::tool("setfacl").is_none() {
        return;
    }
    for options in ["noxattr", "noxattr,private"] {
        let volume = Scratch::new();
        let dir = mount(&volume, "suid");
        let _guard = Guard(&dir);
        let file = dir.join("noted");
        fs::write(&file, "text").unwrap();
        lsetxattr(&file, "user.note", b"kept", XattrFlags::empty()).unwrap();
        for (name, _) in CHANGES {
            fs::write(dir.join(name), "contents").unwrap();
            lsetxattr(dir.join(name), CAPABILITY, &CAPABILITY_VALUE, XattrFlags::empty()).unwrap();
        }
        fs::create_dir(dir.join("shared")).unwrap();
        let (shared, list) = (dir.join("shared"), format!("u:{}:r", OWNER.uid));
        let words = ["-d".as_ref(), "-m".as_ref(), list.as_ref(), shared.as_os_str()];
        cowshed_harness::run("setfacl", &words).unwrap();
        unmount(&dir);

        let dir = mount(&volume, &format!("suid,{options}"));
        for (call, outcome) in [
            ("get", value(&file, "user.note").map(drop)),
            ("list", llistxattr(&file, &mut [0_u8; 64][..]).map(drop)),
            ("set", lsetxattr(&file, "user.more", b"x", XattrFlags::empty())),
            ("remove", lremovexattr(&file, "user.note")),
        ] {
            assert_eq!(outcome, Err(Errno::OPNOTSUPP), "{options}: {call}");
        }
        let list = value(&dir.join("shared"), "system.posix_acl_default");
        assert!(
            matches!(list, Err(Errno::OPNOTSUPP | Errno::NODATA)),
            "{options}: {list:?}"
        );
        fs::write(&file, "other").unwrap();
        fs::rename(&file, dir.join("renamed")).unwrap();
        for (name, change) in CHANGES {
            change(&dir.join(name));
        }
        fs::write(dir.join("shared/new"), "for some").unwrap();
        fs::set_permissions(dir.join("shared/new"), fs::Permissions::from_mode(0o640)).unwrap();
        cowshed_harness::run("ls", &["-lR".as_ref(), dir.as_os_str()]).unwrap();
        let copy = dir.join("shared copied");
        cowshed_harness::run("cp", &["-a".as_ref(), shared.as_os_str(), copy.as_os_str()]).unwrap();
        unmount(&dir);

        let dir = mount(&volume, "suid");
        assert_eq!(value(&dir.join("renamed"), "user.note").as_deref(), Ok(&b"kept"[..]));
        assert_eq!(value(&dir.join("renamed"), "user.more"), Err(Errno::NODATA));
        for (name, _) in CHANGES {
            let left = value(&dir.join(name), CAPABILITY);
            assert_eq!(left, Err(Errno::NODATA), "{options}: {name}");
        }
        // New files have the access list of their directory nevertheless.
        let read = |user| act_as(user, || fs::read_to_string(dir.join("shared/new")));
        assert_eq!(read(OWNER).unwrap(), "for some");
        assert!(read(STRANGER).is_err());
        unmount(&dir);
        volume.assert_clean();
    }
}
