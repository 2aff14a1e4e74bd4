//! Set-id bits and file capabilities after every change of contents, as the next `stat` and the
//! next `exec` see them: on our mounts what the kernel's own btrfs shows, side by side.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cowshed_harness::{KernelVolume, VolumeOptions, limit, need};
use rustix::fs::{FallocateFlags as F, XattrFlags};

use super::{
    KINDS, OWNER, OurMount, ROOT, STRANGER, User, act_as, can_run, is_passed_on, known_mode, make_shared_dir, refresh,
};
use crate::support::{COWSHED, in_name_space};

const CAPABILITY: &str = "security.capability";
/// `vfs_cap_data` of version 2 with CAP_NET_RAW permitted.
const CAPABILITY_VALUE: [u8; 20] = [0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const SIZE: u64 = 64 << 10;

#[repr(align(4096))]
pub struct Block(pub [u8; 4096]);

pub fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

pub fn allocate(path: &Path, mode: F, offset: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(writable(path)?, mode, offset, len)?)
}

pub fn copy(path: &Path, source: &Path, mut from: u64, mut to: u64, len: usize) -> io::Result<()> {
    let (source, target) = (File::open(source)?, writable(path)?);
    rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), len)?;
    Ok(())
}

/// A command of ours, which speaks the calls of the kernel on a mount of the kernel.
pub fn cowshed(user: User, args: &[&str], paths: &[&Path]) -> io::Result<()> {
    let mut command = Command::new(COWSHED);
    command.args(args).args(paths).uid(user.uid).gid(user.gid);
    let output = limit::output(&mut command).map_err(io::Error::other)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Gets the file, one with other contents, and the caller.
type Call = fn(&Path, &Path, User) -> io::Result<()>;

/// What is asked of both kinds of mounts.
const CALLS: &[(&str, Call)] = &[
    ("write", |f, _, _| writable(f)?.write_all_at(b"new", 100)),
    ("write of nothing", |f, _, _| writable(f)?.write_at(b"", 0).map(drop)),
    ("append", |f, _, _| {
        io::Write::write_all(&mut OpenOptions::new().append(true).open(f)?, b"new")
    }),
    ("O_DIRECT write", |f, _, _| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(f)?;
        file.write_all_at(&Block([1; 4096]).0, 4096)
    }),
    ("O_DIRECT write at the end", |f, _, _| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(f)?;
        file.write_all_at(&Block([1; 4096]).0, SIZE)
    }),
    ("O_SYNC write", |f, _, _| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(f)?;
        file.write_all_at(b"new", 100)
    }),
    ("store through a mapping", |f, _, _| {
        let file = writable(f)?;
        cowshed_harness::write_through_map(&file, 100, b"new")?;
        file.sync_all()
    }),
    ("allocate", |f, _, _| allocate(f, F::empty(), 0, 4096)),
    ("allocate at the end", |f, _, _| allocate(f, F::empty(), SIZE, 4096)),
    ("allocate behind the end", |f, _, _| {
        allocate(f, F::KEEP_SIZE, SIZE, 4096)
    }),
    ("punch", |f, _, _| allocate(f, F::PUNCH_HOLE | F::KEEP_SIZE, 4096, 4096)),
    ("punch of a few bytes", |f, _, _| {
        allocate(f, F::PUNCH_HOLE | F::KEEP_SIZE, 100, 50)
    }),
    ("zero", |f, _, _| allocate(f, F::ZERO_RANGE, 4096, 4096)),
    ("zero and keep the size", |f, _, _| {
        allocate(f, F::ZERO_RANGE | F::KEEP_SIZE, 4096, SIZE)
    }),
    ("truncate", |f, _, _| writable(f)?.set_len(5000)),
    ("truncate to nothing", |f, _, _| writable(f)?.set_len(0)),
    ("truncate that grows", |f, _, _| writable(f)?.set_len(SIZE + 5000)),
    ("truncate to the same size", |f, _, _| writable(f)?.set_len(SIZE)),
    ("open with O_TRUNC", |f, _, _| File::create(f).map(drop)),
    ("copy_file_range of blocks", |f, from, _| copy(f, from, 0, 4096, 8192)),
    ("copy_file_range of bytes", |f, from, _| copy(f, from, 10, 100, 50)),
    ("copy_file_range that grows", |f, from, _| copy(f, from, 0, SIZE, 4096)),
    ("clone", |f, from, user| cowshed(user, &["clone"], &[from, f])),
    ("dedupe", |f, from, user| cowshed(user, &["dedupe"], &[from, f])),
    ("utimensat", |f, _, _| {
        writable(f)?.set_modified(std::time::SystemTime::now())
    }),
    ("chown to the same owner", |f, _, _| chown(f, Some(OWNER.uid), None)),
    ("chown to the same group", |f, _, _| chown(f, None, Some(OWNER.gid))),
    ("chown to another group", |f, _, _| chown(f, None, Some(STRANGER.gid))),
    ("chmod to the same mode", |f, _, _| {
        let mode = fs::metadata(f)?.permissions().mode();
        fs::set_permissions(f, fs::Permissions::from_mode(mode & 0o7777))
    }),
    ("set a user attribute", |f, _, _| {
        Ok(rustix::fs::setxattr(f, "user.note", b"text", XattrFlags::empty())?)
    }),
    ("set an access list", |f, _, _| set_list(f)),
    ("remove an access list", |f, _, _| {
        set_list(f)?;
        Ok(rustix::fs::removexattr(f, "system.posix_acl_access")?)
    }),
];

/// What only our mounts have. They are to do as a write does.
const OURS: &[(&str, Call)] = &[
    ("exchange", |f, from, user| cowshed(user, &["exchange"], &[from, f])),
    ("atomic group", |f, _, _| {
        let file = writable(f)?;
        cowshed_harness::start_atomic_write(&file)?;
        file.write_all_at(&[9; 4096], 0)?;
        cowshed_harness::commit_atomic_write(&file)
    }),
];

/// An access list with an entry for another user, which leaves owner and others their rights.
pub fn set_list(path: &Path) -> io::Result<()> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    // user::rwx, user:3000:r, group::rwx, mask::rwx, other::rwx
    for (tag, perm, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 4, 3000),
        (4, 7, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 7, u32::MAX),
    ] {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(rustix::fs::setxattr(
        path,
        "system.posix_acl_access",
        &value,
        XattrFlags::empty(),
    )?)
}

fn fresh(path: &Path, fill: u8, mode: u32, group: u32, has_capability: bool) {
    let _ = fs::remove_file(path);
    fs::write(path, vec![fill; SIZE as usize]).unwrap();
    chown(path, Some(OWNER.uid), Some(group)).unwrap();
    if has_capability {
        rustix::fs::setxattr(path, CAPABILITY, &CAPABILITY_VALUE, XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    refresh(path);
}

fn has_capability(path: &Path) -> bool {
    rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64][..]).is_ok()
}

/// What is seen after a call: its outcome, the mode at once, and whether there still is a
/// capability.
fn outcome_on(
    dir: &Path,
    (call, user): (Call, User),
    (mode, group, capability): (u32, u32, bool),
) -> (bool, u32, bool) {
    let (file, other) = (dir.join("f"), dir.join("other"));
    fresh(&file, 7, mode, group, capability);
    fresh(&other, 7, 0o777, group, false);
    let done = act_as(user, || call(&file, &other, user));
    let seen = known_mode(&file);
    refresh(&file);
    assert_eq!(
        format!("{seen:o}"),
        format!("{:o}", known_mode(&file)),
        "the next stat sees the mode as it is: {done:?}"
    );
    (done.is_ok(), seen, has_capability(&file))
}

const CASES: &[(User, u32, u32)] = &[
    (ROOT, 0o6777, 1000),
    (ROOT, 0o2767, 1000),
    (ROOT, 0o6777, 5000),
    (OWNER, 0o6777, 1000),
    (OWNER, 0o4777, 1000),
    (OWNER, 0o2777, 1000),
    (OWNER, 0o2767, 1000),
    (OWNER, 0o6767, 5000),
    (OWNER, 0o2777, 5000),
    (OWNER, 0o1777, 1000),
    (STRANGER, 0o6777, 1000),
    (STRANGER, 0o2767, 1000),
    (STRANGER, 0o2767, 2000),
    (STRANGER, 0o6755, 1000),
    (OWNER, 0o6577, 1000),
];

#[test]
fn after_each_call_mounts_show_the_mode_that_the_kernels_btrfs_shows() {
    let Some(()) = can_run() else { return };
    let kernel = KernelVolume::make(&VolumeOptions::default()).unwrap();
    fs::set_permissions(kernel.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = kernel.mount().unwrap();
    if let Some(above) = theirs.dir().parent() {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let shared = make_shared_dir(theirs.dir());
    let mut wrong = Vec::new();
    for options in KINDS {
        let ours = OurMount::new(options);
        for (user, mode, group) in CASES {
            for capability in [false, true] {
                let case = (*mode, *group, capability);
                for (name, call) in CALLS.iter().filter(|(name, _)| is_passed_on(name)) {
                    let told = format!(
                        "{options}: {name} by {} on {mode:o} of group {group}, capability {capability}",
                        user.uid
                    );
                    let seen = std::panic::catch_unwind(|| outcome_on(&ours.shared(), (*call, *user), case));
                    let expected = outcome_on(&shared, (*call, *user), case);
                    match seen {
                        Err(_) => wrong.push(format!("{told}: stale")),
                        Ok(seen) if seen != expected => {
                            wrong.push(format!(
                                "{told}: {:o} {seen:?} and not {:o} {expected:?}",
                                seen.1, expected.1
                            ));
                        }
                        Ok(_) => {}
                    }
                }
                let expected = outcome_on(&shared, (CALLS[0].1, *user), case);
                // Groups belong to open files, which are not told with no_open.
                let has = |name: &str| name != "atomic group" || !options.contains("no_open");
                for (name, call) in OURS.iter().filter(|(name, _)| has(name)) {
                    let seen = std::panic::catch_unwind(|| outcome_on(&ours.shared(), (*call, *user), case));
                    if !seen.as_ref().is_ok_and(|seen| *seen == expected) {
                        wrong.push(format!("{options}: {name} by {} on {mode:o} of group {group}, capability {capability}: {seen:?} and not {expected:?}", user.uid));
                    }
                }
            }
        }
        ours.end();
    }
    theirs.unmount().unwrap();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A program that says whose rights it has, whose set-user-id bit went with a change of its file.
#[test]
fn a_changed_program_runs_without_its_set_user_id_bit() {
    let Some(()) = can_run() else { return };
    let Some(()) = need::tool("id") else { return };
    for options in KINDS {
        let mount = OurMount::new(options);
        let program = mount.shared().join("id");
        let runs_as = || {
            let mut command = Command::new(&program);
            command.arg("-u").uid(STRANGER.uid).gid(STRANGER.gid);
            let output = limit::output(&mut command).unwrap();
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        let changes: [(&str, Call); 4] = [
            ("a write", |f, _, _| {
                let end = fs::metadata(f)?.len();
                writable(f)?.write_all_at(b"more", end)
            }),
            ("a direct write", |f, _, _| {
                let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(f)?;
                let end = file.metadata()?.len().next_multiple_of(4096);
                file.write_all_at(&Block([1; 4096]).0, end)
            }),
            ("a fallocate", |f, _, _| allocate(f, F::KEEP_SIZE, 16 << 20, 4096)),
            ("a copy_file_range", |f, from, _| {
                let end = fs::metadata(f)?.len();
                copy(f, from, 0, end, 4096)
            }),
        ];
        for (name, change) in changes {
            let other = mount.shared().join("other");
            fs::write(&other, [1; 4096]).unwrap();
            let _ = fs::remove_file(&program);
            fs::copy("/usr/bin/id", &program).unwrap();
            chown(&program, Some(OWNER.uid), Some(OWNER.gid)).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(runs_as(), "1000", "with the bit, before {name}");
            act_as(OWNER, || change(&program, &other, OWNER)).unwrap();
            assert_eq!(runs_as(), "2000", "{options}: after {name}");
        }
        mount.end();
    }
}

/// A mount of an ordinary user with access to `/dev/fuse` in this name space: the file system
/// checks permissions, and other users may not enter.
#[test]
fn on_a_users_own_mount_the_next_stat_sees_set_id_bits_gone() {
    let Some(()) = can_run() else { return };
    for program in [
        "fusermount3",
        "setpriv",
        "unshare",
        "fallocate",
        "dd",
        "truncate",
        "setfacl",
    ] {
        let Some(()) = need::tool(program) else { return };
    }
    let script = r#"
        set -eu
        mount -t tmpfs tmpfs "$1"
        cp "$2" "$1/cowshed"
        mkdir "$1/dev" "$1/home"
        mknod -m 666 "$1/dev/fuse" c 10 229
        mount --bind "$1/dev/fuse" /dev/fuse
        chmod 755 "$1" "$1/cowshed"
        chown 1000:1000 "$1/home"
        cd "$1/home"
        exec setpriv --reuid=1000 --regid=1000 --clear-groups sh -euc '
            ../cowshed mkfs -q -b 200m image
            mkdir mnt
            ../cowshed mount image mnt
            f=mnt/f
            head -c 65536 /dev/zero | tr "\\0" x > mnt/from
            check() {
                name=$1; wanted=$2; mode=$3; shift 3
                head -c 65536 /dev/zero | tr "\\0" x > $f
                chmod $mode $f
                before=$(stat -c %a $f)
                "$@" > /dev/null 2>&1
                echo "$name $before $(stat -c %a $f) $wanted"
                rm $f
            }
            for modes in "6755 755" "2745 2745" "4755 755"; do
                set -- $modes
                check write $2 $1 dd if=mnt/from of=$f bs=100 count=1 conv=notrunc
                check direct $2 $1 dd if=mnt/from of=$f bs=4096 count=1 conv=notrunc oflag=direct
                check allocate $2 $1 fallocate -l 100000 $f
                check punch $2 $1 fallocate -p -o 4096 -l 4096 $f
                [ -z "$ZERO" ] || check zero $2 $1 fallocate -z -o 4096 -l 4096 $f
                check truncate $2 $1 truncate -s 100 $f
                check open $2 $1 dd if=/dev/null of=$f
                check clone $2 $1 ../cowshed clone mnt/from $f
                check exchange $2 $1 ../cowshed exchange mnt/from $f
            done
            check list 6675 6755 setfacl --set u::rw,g::rwx,o::r-x $f
            ../cowshed umount mnt
            ../cowshed check image > /dev/null
        '
    "#;
    let dir = tempfile::tempdir().unwrap();
    let mut unshare = in_name_space();
    let zeroes = is_passed_on("zero");
    unshare
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(dir.path())
        .arg(COWSHED)
        .env("ZERO", if zeroes { "1" } else { "" });
    let ran = limit::output(&mut unshare).unwrap_or_else(|e| panic!("{e:#}"));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), if zeroes { 28 } else { 25 }, "{said}");
    for line in lines {
        assert_eq!(line[2], line[3], "{} on {}", line[0], line[1]);
    }
}

/// For FUSE this is a request that changes nothing, sent likewise before a write: it takes no
/// set-id bits away (on the kernel's btrfs the owner's does). Linux lets any user make it, and has
/// it remove capabilities.
#[test]
fn a_chown_that_names_nothing_keeps_set_id_bits_and_needs_the_right_to_write_to_remove_capabilities() {
    let Some(()) = can_run() else { return };
    for options in KINDS {
        let mount = OurMount::new(options);
        let chown_nothing: Call = |f, _, _| chown(f, None, None);
        for (user, mode, keeps_capability) in [
            (STRANGER, 0o6755, true),
            (STRANGER, 0o6777, false),
            (OWNER, 0o6755, false),
            (ROOT, 0o6755, false),
        ] {
            let (done, seen, capability) = outcome_on(&mount.shared(), (chown_nothing, user), (mode, OWNER.gid, true));
            let told = format!("{options}: {} on {mode:o}", user.uid);
            assert_eq!((done, seen, capability), (true, mode, keeps_capability), "{told}");
        }
        mount.end();
    }
}
