//! Subvolumes that get another name by rename(2): each case on a mount of ours and on one of the
//! kernel's, with the same outcome.

use std::ffi::OsStr;
use std::path::Path;

use cowshed_harness::{KernelVolume, need, run_in};

use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};

/// Each case in a directory of its own; a line says what came of it: error, names, inode numbers
/// within their subvolumes, whether the time of the last change moved.
const CASES: &str = r#"
import ctypes, errno, fcntl, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4

def ioctl(path, number, data, size):
    fd = os.open(path, os.O_RDONLY)
    fcntl.ioctl(fd, number, bytearray(data.ljust(size, b"\0")))
    os.close(fd)
def sub(path):
    ioctl(os.path.dirname(path) or ".", 0x5000940e, struct.pack("<q", 0) + os.path.basename(path).encode(), 4096)
def snap(source, name):
    fd = os.open(source, os.O_RDONLY)
    ioctl(".", 0x50009401, struct.pack("<q", fd) + name.encode(), 4096)
    os.close(fd)
def ro(path):
    ioctl(path, 0x4008941a, struct.pack("<Q", 2), 8)
def file(path):
    open(path, "w").write(path)
def rename(old, new, flags):
    done = libc.renameat2(-100, old.encode(), -100, new.encode(), flags)
    return "ok" if done == 0 else errno.errorcode[ctypes.get_errno()]
def ino(path):
    return os.lstat(path).st_ino & 0xffffffffff

def names(top="."):
    found = []
    for here, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            path = os.path.join(here, name)
            kind = "/" if os.path.isdir(path) else "%o" % os.lstat(path).st_mode
            number = ino(path)
            found.append(f"{path}:{kind}:{number if number in (2, 256) else 'other'}")
    return " ".join(found)

count = 0
def case(label, setup, old, new, flags=0):
    global count
    count += 1
    os.mkdir(f"case{count}")
    os.chdir(f"case{count}")
    for make, *args in setup:
        make(*args)
    before = os.lstat(old)
    outcome = rename(old, new, flags)
    moved = os.lstat(new if outcome == "ok" else old)
    changed = "changed" if moved.st_ctime_ns != before.st_ctime_ns else "as it was"
    if label.startswith("read-only"):
        # The kernel shows another time until it forgets the inode, and never writes it.
        changed = "read-only"
    print(f"{label}: {outcome}, {changed}: {names()}")
    os.chdir("..")

os.chdir(sys.argv[1])
S, T, D = (sub, "s"), (sub, "t"), (os.mkdir, "d")
case("within a directory", [S, (file, "s/a")], "s", "t")
case("to another directory", [S, (file, "s/a"), D], "s", "d/t")
case("to another subvolume", [S, (sub, "d"), (file, "s/a")], "s", "d/t")
case("out of one", [S, (sub, "s/n"), (file, "s/n/a")], "s/n", "n")
case("with others in it", [S, (sub, "s/n"), (file, "s/n/a"), D], "s", "d/t")
case("into itself", [S, (os.mkdir, "s/d")], "s", "s/d/x")
case("into one in it", [S, (sub, "s/n")], "s", "s/n/x")
case("over an empty directory", [S, (file, "s/a"), D], "s", "d")
case("over a directory", [S, D, (os.mkdir, "d/e")], "s", "d")
case("over a file", [S, (file, "f")], "s", "f")
case("over an empty subvolume", [S, T], "s", "t")
case("over a subvolume", [S, T, (file, "t/f")], "s", "t")
case("a directory over an empty one", [D, T], "d", "t")
case("a file over one", [(file, "f"), T], "f", "t")
case("a directory into one", [D, T], "d", "t/d")
case("a file into one", [(file, "f"), T], "f", "t/f")
case("exchanged", [S, T, (file, "s/a"), (file, "t/b")], "s", "t", EXCHANGE)
case("with a directory", [S, (os.mkdir, "t"), (file, "s/a"), (file, "t/b")], "s", "t", EXCHANGE)
case("a directory with one", [S, (os.mkdir, "t"), (file, "s/a"), (file, "t/b")], "t", "s", EXCHANGE)
case("with a file", [S, (file, "f"), (file, "s/a")], "s", "f", EXCHANGE)
case("with one elsewhere", [S, (sub, "d"), (sub, "d/t"), (file, "s/a"), (file, "d/t/b")], "s", "d/t", EXCHANGE)
case("with a directory elsewhere", [S, (sub, "d"), (os.mkdir, "d/t")], "s", "d/t", EXCHANGE)
case("with one in it", [S, (sub, "s/n")], "s", "s/n", EXCHANGE)
case("not over anything", [S, T], "s", "t", NOREPLACE)
case("a whiteout stays", [S, D], "s", "d/t", WHITEOUT)
case("a whiteout stays in another subvolume", [S, (sub, "d")], "s", "d/t", WHITEOUT)
case("read-only, within a directory", [S, (ro, "s")], "s", "t")
case("read-only, to another directory", [S, D, (ro, "s")], "s", "d/t")
case("into a read-only one", [S, T, (ro, "t")], "s", "t/s")
case("out of a read-only one", [T, (sub, "t/s"), (ro, "t")], "t/s", "s")
case("over a stand-in", [T, (sub, "t/s"), (snap, "t", "u"), (sub, "z")], "z", "u/s")
case("a directory over a stand-in", [T, (sub, "t/s"), (snap, "t", "u"), (os.mkdir, "u/d")], "u/d", "u/s")
case("to the subvolume with its stand-in", [T, (sub, "t/s"), (snap, "t", "u"), (file, "t/s/a")], "t/s", "u/z")
case("over its own stand-in", [T, (sub, "t/s"), (snap, "t", "u"), (file, "t/s/a")], "t/s", "u/s")
case("under its own name", [S], "s", "s")
os.mkdir("many")
for n in range(300):
    file(f"many/file{n}")
sub("many/last")
case("out of a large directory", [S], "../many/last", "s/last")
"#;

#[test]
fn subvolumes_are_renamed_as_by_the_kernel() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    if need::kernel_btrfs().is_none() {
        return;
    }
    let cases = |top: &Path| run_in(top, "python3", &[OsStr::new("-c"), CASES.as_ref(), top.as_os_str()]);
    let guard = Guard(&mnt);
    let ours = cases(&mnt).expect("the cases on our mount");
    unmount(&mnt);
    drop(guard);
    let volume = KernelVolume::copy_of(&[&scratch.image]).expect("a copy");
    volume.assert_clean();
    // What we made is there for the kernel.
    let listed = volume.with_mount(|root| Ok(std::fs::read_dir(root.join("case5/d/t/n"))?.count()));
    assert_eq!(listed.expect("a mount"), 1);
    let other = KernelVolume::make(&Default::default()).expect("mkfs.btrfs");
    let kernels = other
        .with_mount(|root| Ok(cases(root).expect("the cases on the kernel's mount")))
        .expect("a mount");
    for (ours, kernels) in ours.lines().zip(kernels.lines()) {
        assert_eq!(ours, kernels);
    }
    assert_eq!(ours.lines().count(), kernels.lines().count());
    assert!(ours.lines().count() > 30, "{ours}");
}
