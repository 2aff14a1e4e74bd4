//! The ioctls of `<linux/btrfs.h>`, called as programs call them: answers on a mount of ours beside
//! those of the kernel's, for the same volume.

use std::fs;
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelVolume, need, run_in};

use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::run;

/// Functions of the scripts below. The numbers and layouts are those of the header.
pub const HEAD: &str = r#"
import errno, fcntl, os, struct, sys
def call(path, number, data=b"", size=None):
    size = (number >> 16) & 0x3fff if size is None else size
    buf = bytearray(data.ljust(size, b"\0"))
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, number, buf)
    except OSError as error:
        return error.errno, bytes(buf)
    finally:
        os.close(fd)
    return 0, bytes(buf)
def done(answer):
    assert answer[0] == 0, os.strerror(answer[0])
    return answer[1]
def named(name): return struct.pack("<q", 0) + name.encode()
def named2(name, flags=0): return struct.pack("<qQQ32x", 0, 0, flags) + name
def vol(path, number, name): return call(path, number, named(name), 4096)[0]
CREATE, DESTROY = 0x5000940e, 0x5000940f
CREATE_V2, DESTROY_V2 = 0x50009418, 0x5000943f
def info(path): return done(call(path, 0x81f8943c))
def text(field): return field.split(b"\0")[0]
def number(path): return struct.unpack_from("<Q", info(path))[0]
"#;

const CHANGES: &str = r#"
top = sys.argv[1]
def at(name): return os.path.join(top, name)
assert vol(top, CREATE, "one") == 0 and vol(top, CREATE, "one") == errno.EEXIST
assert done(call(top, CREATE_V2, named2(b"two"), 4096))
assert call(top, CREATE_V2, named2(b"no", 1 << 2), 4096)[0] == errno.EOPNOTSUPP, "quota groups"
assert vol(top, CREATE, "x" * 300) == errno.ENAMETOOLONG
assert vol(at("one"), CREATE, "inner") == 0
os.makedirs(at("one/dir/deep"))
assert vol(at("one/dir/deep"), CREATE, "nested") == 0
for name in ["dead", "doomed"]:
    assert vol(top, CREATE, name) == 0
assert vol(top, DESTROY, "dead") == 0 and vol(top, DESTROY, "dead") == errno.ENOENT
doomed = number(at("doomed"))
assert done(call(top, DESTROY_V2, named2(struct.pack("<Q", doomed), 1 << 4), 4096))
assert call(top, DESTROY_V2, named2(struct.pack("<Q", doomed), 1 << 4), 4096)[0] == errno.ENOENT
assert not os.path.exists(at("doomed"))
assert vol(top, DESTROY, "one") == errno.ENOTEMPTY

# Snapshots of what a descriptor is open on.
def snapshot(source, name, flags=None, fd=None):
    fd = os.open(source, os.O_RDONLY) if fd is None else fd
    if flags is None:
        answer = call(top, 0x50009401, struct.pack("<q", fd) + name, 4096)
    else:
        answer = call(top, 0x50009417, struct.pack("<qQQ32x", fd, 0, flags) + name, 4096)
    return answer[0]
open(at("one/dir/file"), "w").write("before")
assert snapshot(at("one"), b"snap") == 0 and snapshot(at("one"), b"frozen", 2) == 0
open(at("one/dir/file"), "w").write("after it")
assert open(at("snap/dir/file")).read() == open(at("frozen/dir/file")).read() == "before"
assert struct.unpack("<Q", done(call(at("frozen"), 0x80089419)))[0] == 2
assert snapshot(top, b"of-top", 0) == 0 and os.path.isdir(at("of-top/one"))
assert snapshot(at("snap"), b"again") == 0 and open(at("again/dir/file")).read() == "before"
assert snapshot(at("one"), b"snap") == errno.EEXIST
assert snapshot(at("one/dir"), b"no") == errno.EINVAL
assert snapshot(at("one/dir/file"), b"no") in (errno.EINVAL, errno.ENOENT)
assert snapshot("/proc", b"no") == errno.EXDEV
assert snapshot(None, b"no", fd=9999) == errno.EINVAL
assert snapshot(None, b"no", fd=-1) == errno.EINVAL
for name in ["snap", "frozen", "of-top", "again"]:
    assert vol(top, DESTROY, name) == 0
os.remove(at("one/dir/file"))

# Flags.
assert call(at("two"), 0x4008941a, struct.pack("<Q", 1))[0] == errno.EOPNOTSUPP
open(at("two/file"), "w").write("x")
# Longer than what a search has room for.
os.setxattr(at("two/file"), "user.long", b"v" * 9000)
done(call(at("two"), 0x4008941a, struct.pack("<Q", 2)))
try:
    open(at("two/new"), "w")
    raise AssertionError("written")
except OSError as error:
    assert error.errno == errno.EROFS
assert struct.unpack("<Q", done(call(at("two"), 0x80089419)))[0] == 2
assert call(at("one/dir"), 0x4008941a, struct.pack("<Q", 2))[0] == errno.EINVAL
done(call(at("two"), 0x4008941a, struct.pack("<Q", 0)))
open(at("two/new"), "w").write("y")

# What it was received from.
received = struct.pack("<16sQQQI4xQI4xQ", b"u" * 16, 77, 0, 1000000000, 5, 0, 0, 0)
answer = done(call(at("two"), 0xc0c89425, received))
assert struct.unpack_from("<Q", answer, 24)[0] > 0, "the transaction in which it was received"
assert call(at("one/dir"), 0xc0c89425, received)[0] == errno.EINVAL
done(call(at("two"), 0x4008941a, struct.pack("<Q", 2)))
assert call(at("two"), 0xc0c89425, received)[0] == errno.EROFS

# The default, and the label.
assert call(top, 0x40089413, struct.pack("<Q", 9999))[0] == errno.ENOENT
done(call(top, 0x40089413, struct.pack("<Q", number(at("one")))))
assert vol(at("one"), DESTROY, "inner") == 0
done(call(top, 0x41009432, b"moo"))
assert call(top, 0x41009432, b"m" * 256)[0] == errno.EINVAL
done(call(top, 0x40089416, struct.pack("<Q", 0)))
generation = struct.unpack("<Q", done(call(top, 0x80089418)))[0]
assert call(top, 0x40089416, struct.pack("<Q", generation + 1000))[0] == errno.EINVAL
"#;

/// What both answer, a line each.
const ANSWERS: &str = r#"
top = sys.argv[1]
def at(name): return os.path.join(top, name)
for name in ["", "one", "two", "one/dir", "one/dir/deep/nested"]:
    print("flags", name, call(at(name), 0x80089419))
    print("info", name, info(at(name)).hex())
    print("references", name, done(call(at(name), 0xd000943d)).hex())
    root = done(call(at(name), 0xd0009412, struct.pack("<QQ", 0, 256)))
    print("root", name, root[:16].hex(), text(root[16:]))
    for below in range(256, 270):
        error, answer = call(at(name), 0xd0009412, struct.pack("<QQ", 0, below))
        print("path", name, below, error, text(answer[16:]) if error == 0 else "")
nested = number(at("one/dir/deep/nested"))
for name in ["one", "one/dir", "one/dir/deep"]:
    dirid = os.stat(at("one/dir/deep")).st_ino & 0xffffffffff
    error, answer = call(at(name), 0xd000943e, struct.pack("<QQ", dirid, nested))
    print("below", name, error, text(answer[16:272]), text(answer[272:]))
print("other", text(call(top, 0xd0009412, struct.pack("<QQ", number(at("one")), 257))[1][16:]))
def search(tree, low, high, since=0, items=2**32 - 1):
    key = struct.pack("<QQQQQQQIIII32x", tree, low[0], high[0], low[2], high[2], since, 2**64 - 1, low[1], high[1],
                      items, 0)
    return call(top, 0xd0009411, key, 4096)
def page(answer):
    error, data = answer
    if error:
        return error
    found, place = [], 104
    for _ in range(struct.unpack_from("<I", data, 64)[0]):
        head = struct.unpack_from("<QQQII", data, place)
        place += 32 + head[4]
        found.append((head, data[place - head[4]:place].hex()))
    return found
END = (2**64 - 1, 255, 2**64 - 1)
for tree in [0, 1, 4, 5, 7, 9, number(at("one")), number(at("two")), 9999]:
    print("search", tree, page(search(tree, (0, 0, 0), END)))
    print("few", tree, page(search(tree, (1, 1, 1), END, items=2)))
    everything = page(search(tree, (0, 0, 0), END))
    newest = max([head[0] for head, _ in everything], default=0) if tree != 9999 else 0
    print("newest", tree, newest, page(search(tree, (0, 0, 0), END, since=newest)))
    print("later", tree, page(search(tree, (0, 0, 0), END, since=newest + 1)))
    print("all types", tree, page(search(tree, (0, 0, 0), (2**64 - 1, 2**32 - 1, 2**64 - 1))))
    print("low bytes", tree, page(search(tree, (256, 256, 0), (256, 256 + 12, 2**64 - 1))))
    print("none wanted", tree, page(search(tree, (0, 0, 0), END, items=0)))
# All of a subvolume, page by page: of the long item there is the header alone.
low = (0, 0, 0)
while found := page(search(number(at("two")), low, END)):
    print("pages", found)
    _, object, offset, ty, _ = found[-1][0]
    low = (object, ty, offset + 1)
print("volume", done(call(top, 0x8400941f))[:44].hex())
print("device", done(call(top, 0xd000941e, struct.pack("<Q", 1)))[:40].hex())
print("no device", call(top, 0xd000941e, struct.pack("<Q", 9))[0])
# BIG_METADATA: the kernel sets it at each mount.
print("features", [n & ~0x20 for n in struct.unpack("<QQQ", done(call(top, 0x80189439)))])
print("label", done(call(top, 0x81009431)).hex())
print("statistics", done(call(top, 0xc4089434, struct.pack("<QQQ", 1, 5, 0))).hex())
"#;

fn python(dir: &Path, script: &str) -> String {
    run_in(dir, "python3", &["-c", &format!("{HEAD}{script}"), "."]).unwrap()
}

#[test]
fn ioctls_of_btrfs_answer_as_the_kernels_do() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    python(&mnt, CHANGES);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 2);
    unmount(&mnt);
    scratch.assert_clean();
    // The default is the subvolume "one" now.
    run("mount {} {}", &[&scratch.image, &mnt]).ok();
    assert!(mnt.join("dir/deep/nested").is_dir());
    unmount(&mnt);
    let (Some(()), Some(())) = (need::kernel_btrfs(), need::tool("python3")) else {
        return;
    };
    // The kernel finishes what we left to do, and both look at the same.
    let volume = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    let mounted = volume.mount_with("rw").unwrap();
    assert!(
        mounted.dir().join("dir/deep/nested").is_dir(),
        "the default of the kernel"
    );
    let label = run_in(mounted.dir(), "btrfs", &["filesystem", "label", "."]).unwrap();
    assert_eq!(label, "moo\n");
    mounted.unmount().unwrap();
    let theirs = volume.mount_with("ro,noatime,subvolid=5").unwrap();
    let wanted = python(theirs.dir(), ANSWERS);
    theirs.unmount().unwrap();
    let image: PathBuf = volume.image().to_owned();
    run("mount -o ro,noatime,subvolid=5 {} {}", &[&image, &mnt]).ok();
    let found = python(&mnt, ANSWERS);
    unmount(&mnt);
    drop(guard);
    for (found, wanted) in found.lines().zip(wanted.lines()) {
        assert_eq!(found, wanted);
    }
    assert_eq!(found.lines().count(), wanted.lines().count());
}

/// Waits for deleted subvolumes: errors, the end, and callers that are killed or interrupted, more
/// of them than the server has threads. `sys.argv[2]`: the side.
const WAITS: &str = r#"
import signal, time
top, side = sys.argv[1], sys.argv[2]
def at(name): return os.path.join(top, name)
def wait(id, mode=0):
    return call(top, 0x40109441, struct.pack("<QII", id, mode, 0))[0]
def made(name):
    assert vol(top, CREATE, name) == 0
    id = number(at(name))
    with open(at(name + "/file"), "w") as file:
        file.write("x" * 100000)
    return id
a = made("a")
assert wait(a) == errno.EEXIST
assert wait(9999) == wait(0) == errno.ENOENT
assert wait(5) == wait(255) == wait(2**64 - 1) == errno.EINVAL
assert wait(0, 1) == errno.ENOENT, "nothing is deleted"
assert wait(0, 5) == errno.EINVAL
# Linux says ENOENT where it is gone after a wait, too.
GONE = (0, errno.ENOENT)
if side == "kernel":
    assert vol(top, DESTROY, "a") == 0
    assert wait(a) in GONE and wait(a) == errno.ENOENT
    sys.exit(0)
assert wait(0, 2) == wait(0, 3) == wait(0, 4) == errno.EOPNOTSUPP
opened = open(at("a/file"))
assert vol(top, DESTROY, "a") == 0
class Alarm(Exception): pass
def alarm(*_): raise Alarm()
signal.signal(signal.SIGALRM, alarm)
def interrupted(mode):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        wait(a, mode)
    except Alarm:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
assert interrupted(0) and interrupted(1)
def waiting(count):
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            opened.close()
            answer = wait(a)
            os._exit({0: 1, errno.EAGAIN: 2}.get(answer, 3))
        children.append(child)
    return children
def code(child): return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
others = waiting(4)
time.sleep(0.3)
killed = waiting(40)
time.sleep(0.5)
begin = time.monotonic()
# The mount serves others meanwhile, and another one that shows the same.
assert sorted(os.listdir(top)) == [] and vol(top, CREATE, "b") == 0
for child in killed:
    os.kill(child, signal.SIGKILL)
# Over io_uring some may not wait.
assert {code(child) for child in killed} <= {-signal.SIGKILL, 2}
assert time.monotonic() - begin < 10
opened.close()
assert {code(child) for child in others} == {1}
assert wait(a) == errno.ENOENT
assert vol(top, DESTROY, "b") == 0 and wait(0, 1) in GONE and wait(0, 1) == errno.ENOENT
"#;

#[test]
fn callers_wait_for_deleted_subvolumes_and_can_be_killed_meanwhile() {
    let Some(()) = need::tool("python3") else { return };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let script = format!("{HEAD}{WAITS}");
    run_in(&mnt, "python3", &["-c", &script, ".", "ours"]).unwrap();
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
    let (Some(()), Some(())) = (need::kernel_btrfs(), need::waits_for_subvolumes()) else {
        return;
    };
    let volume = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    let mounted = volume.mount_with("rw,commit=1").unwrap();
    run_in(mounted.dir(), "python3", &["-c", &script, ".", "kernel"]).unwrap();
    mounted.unmount().unwrap();
}

/// A process stores into a mapping; another takes a snapshot. There is no msync.
const STORES: &str = r#"
import mmap
top = sys.argv[1]
def at(name): return os.path.join(top, name)
assert vol(top, CREATE, "one") == 0
SIZE = 3 << 20
with open(at("one/file"), "w+b") as file:
    file.truncate(SIZE)
    pages = mmap.mmap(file.fileno(), SIZE)
for turn in range(1, 6):
    for place in range(0, SIZE, 4096):
        pages[place:place + 8] = struct.pack("<Q", place + turn)
    child = os.fork()
    if child == 0:
        fd = os.open(at("one"), os.O_RDONLY)
        name = b"snap%d" % turn
        os._exit(call(top, 0x50009417, struct.pack("<qQQ32x", fd, 0, 2) + name, 4096)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with open(at("snap%d/file" % turn), "rb") as file:
        data = file.read()
    assert len(data) == SIZE
    for place in range(0, SIZE, 4096):
        assert data[place:place + 8] == struct.pack("<Q", place + turn), (turn, place)
"#;

#[test]
fn snapshot_by_a_plain_ioctl_has_what_was_stored_through_mappings_before_it() {
    let Some(()) = need::tool("python3") else { return };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let started = std::time::Instant::now();
    python(&mnt, STORES);
    // No bounded wait ran out.
    assert!(started.elapsed() < std::time::Duration::from_secs(10));
    unmount(&mnt);
    scratch.assert_clean();
}
