//! A full volume on a mount. Stores through a mapping: what finds no space is an error of msync,
//! and harms nothing else. Each operation: [`steps`].

mod brim;
mod steps;

use std::fs;
use std::time::Duration;

use cowshed_harness::{KernelVolume, need, run_in};

use crate::extents::{Mounted, can_compare, mounted};
use crate::mount::{Guard, can_mount, unmount};
use crate::support::{Scratch, run};

const SCRIPT: &str = r#"
import errno, mmap, os
BLOCK = 4096
def mapped(name):
    with open(name, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
def fill(name):
    with open(name, "wb", buffering=0) as file:
        for step in (1 << 20, 1 << 16, BLOCK):
            try:
                while True:
                    file.write(b"f" * step)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
def flush_fails(mapping):
    try:
        mapping.flush()
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EIO), error
        return True
    return False
with open("old", "wb") as file:
    file.write(b"o" * (1 << 20))
with open("hole", "wb") as file:
    file.truncate(8 << 20)
with open("promised", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 1 << 20)
os.fsync(os.open(".", os.O_RDONLY))
fill("filler")
hole = mapped("hole")
hole[0:4 << 20] = b"h" * (4 << 20)
assert flush_fails(hole), "a store without space"
promised = mapped("promised")
promised[100:500000] = b"p" * 499900
promised.flush()
os.remove("filler")
os.fsync(os.open(".", os.O_RDONLY))
again = mapped("hole")
again[0:1 << 20] = b"i" * (1 << 20)
again.flush()
"#;

#[test]
fn stores_through_a_mapping_of_a_full_volume_fail_at_msync_and_harm_nothing() {
    let (Some(()), Some(())) = (can_compare(), need::tool("python3")) else {
        return;
    };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    run_in(&mnt, "python3", &["-c", SCRIPT]).unwrap_or_else(|e| panic!("{e:#}"));
    let mut promised = vec![0; 1 << 20];
    promised[100..500_000].fill(b'p');
    let is_right = |dir: &std::path::Path| {
        assert!(fs::read(dir.join("old")).unwrap() == vec![b'o'; 1 << 20]);
        assert!(fs::read(dir.join("promised")).unwrap() == promised);
        let hole = fs::read(dir.join("hole")).unwrap();
        assert!(hole.len() == 8 << 20 && hole[..1 << 20] == vec![b'i'; 1 << 20]);
        assert!(
            hole[1 << 20..].iter().all(|b| [0, b'h'].contains(b)),
            "stored, or a hole"
        );
    };
    is_right(&mnt);
    // The unmount reports the error once more. A mount that is busy for a moment is tried again.
    let mut told = String::new();
    for _ in 0..100 {
        let ran = run("umount {}", &[&mnt]);
        told += &ran.err;
        if !ran.err.contains("busy") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(told.contains("not everything could be written"), "{told}");
    scratch.assert_clean();
    let volume = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    volume.assert_clean();
    let by_kernel = |dir: &std::path::Path| {
        is_right(dir);
        Ok(())
    };
    volume.with_mount(by_kernel).unwrap();
}

/// Files with an extended attribute of 3,500 bytes until nothing is left, then many are deleted at
/// once, again and again. The volume forgets a deleted file a moment later, on another thread, and
/// both draw on what is kept for deleting.
const DELETIONS: &str = r#"
import errno, os
fd = os.open("ballast", os.O_CREAT | os.O_RDWR)
size = 0
def until_full(step):
    try:
        while True:
            step()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
for step in (16 << 20, 1 << 20, 64 << 10, 4096):
    def more():
        global size
        os.posix_fallocate(fd, size, step)
        size += step
    until_full(more)
names = []
def name():
    path = "crumb%d" % len(names)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    names.append(path)
    os.setxattr(path, "user.fat", b"x" * 3500)
until_full(name)
assert len(names) > 1000, len(names)
for turn in range(120):
    for _ in range(turn % 40 + 1):
        os.unlink(names.pop())
    until_full(name)
while names:
    os.unlink(names.pop())
"#;

#[test]
fn deleting_is_never_refused() {
    let Some(()) = need::tool("python3") else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = dir.path().join("volume.img");
    let scratch = Scratch { dir, image };
    let mnt = scratch.mountpoint();
    let Some(()) = can_mount() else { return };
    run("mkfs -q -b 128m {}", &[&scratch.image]).ok();
    run("mount -o commit=300 {} {}", &[&scratch.image, &mnt]).ok();
    let _guard = Guard(&mnt);
    run_in(&mnt, "python3", &["-c", DELETIONS]).unwrap_or_else(|e| panic!("{e:#}"));
    unmount(&mnt);
    scratch.assert_clean();
}
