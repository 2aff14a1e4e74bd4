//! Atomic groups on a mount through f2fs's ioctls, as SQLite makes them: what each descriptor sees,
//! and what is left of them.

use std::fs;
use std::process::{Child, Command, Stdio};

use cowshed_harness::{KernelVolume, limit, need, run_in, shell};

use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{eventually, run};

/// Functions of the scripts below. `<linux/f2fs.h>` has the numbers.
const HEAD: &str = r#"
import errno, fcntl, mmap, os, struct, sys, time
SIZE = 65536
OLD, NEW = b"o" * SIZE, b"n" * SIZE
def start(fd): fcntl.ioctl(fd, 0xf501)
def commit(fd): fcntl.ioctl(fd, 0xf502)
def abort(fd): fcntl.ioctl(fd, 0xf505)
def features(fd):
    return struct.unpack("<I", fcntl.ioctl(fd, 0x8004f50c, bytes(4)))[0]
def fails(number, call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError("was not refused")
def whole(fd):
    return os.pread(fd, 2 * SIZE, 0)
def direct():
    fd = os.open("file", os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, SIZE)
    assert os.preadv(fd, [page], 0) == SIZE
    os.close(fd)
    return page[:]
"#;

const ENDS: &str = r#"
with open("file", "wb") as file:
    file.write(OLD)
writer, other = os.open("file", os.O_RDWR), os.open("file", os.O_RDWR)
reader = os.open("file", os.O_RDONLY)
mapped = mmap.mmap(reader, SIZE, prot=mmap.PROT_READ)
def views():
    fresh = os.open("file", os.O_RDONLY)
    seen = [whole(writer), whole(other), whole(reader), whole(fresh), mapped[:], direct()]
    os.close(fresh)
    return seen
assert views() == [OLD] * 6
assert features(writer) & 4, "atomic writes are offered"
assert features(reader) & 4 == 0, "not to a reader"
fails(errno.EBADF, start, reader)

# Staged: Linux has one cache of a file for all descriptors, in which the writes are. What lies behind it is as it was.
start(writer)
start(writer)
fails(errno.EBUSY, start, other)
assert views() == [OLD] * 6, "started"
assert os.pwrite(writer, b"n" * 50000, 100) == 50000
staged = OLD[:100] + b"n" * 50000 + OLD[50100:]
assert views() == [staged] * 5 + [OLD], "staged"
os.pwrite(writer, b"n" * 10, SIZE)
assert os.stat("file").st_size == SIZE, "beyond the end"
assert direct() == OLD

abort(writer)
assert os.stat("file").st_size == SIZE
assert views() == [OLD] * 6, "aborted"
abort(writer)

start(other)
fails(errno.EBUSY, start, writer)
os.pwrite(other, NEW, 0)
commit(other)
assert views() == [NEW] * 6, "committed"

# A descriptor that is closed takes its group along.
start(other)
os.pwrite(other, OLD, 0)
os.close(other)
other = os.open("file", os.O_RDWR)
# Linux tells of the close an instant after it.
until = time.monotonic() + 5
while views() != [NEW] * 6:
    assert time.monotonic() < until, "closed"
start(writer)
abort(writer)
"#;

/// Ends by being killed.
const KILLED: &str = r#"
writer = os.open("file", os.O_RDWR)
start(writer)
os.pwrite(writer, b"x" * 3 * SIZE, 0)
assert os.pread(writer, 1, 0) == b"x"
open("../staged", "w").close()
time.sleep(60)
"#;

/// A process that does not outlive its test.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = limit::kill(&mut self.0);
    }
}

#[test]
fn groups_through_ioctls_happen_as_a_whole_or_not_at_all() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let Some(()) = need::tool("python3") else { return };
    let _guard = Guard(&mnt);
    let script = format!("{HEAD}{ENDS}");
    run_in(&mnt, "python3", &["-c", &script]).unwrap_or_else(|e| panic!("{e:#}"));
    let new = vec![b'n'; 65536];
    // What was committed is durable: a copy of the device is what a crash would leave.
    let crashed = scratch.path("crashed");
    fs::copy(&scratch.image, &crashed).unwrap();
    assert!(run("cat {} file", &[&crashed]).ok().out == new, "durable");

    let script = format!("{HEAD}{KILLED}");
    let mut command = Command::new("python3");
    command.args(["-c", &script]).current_dir(&mnt).stdin(Stdio::null());
    let writer = Writer(command.spawn().unwrap());
    eventually("the group", || scratch.path("staged").exists());
    drop(writer);
    // Linux tells of the close an instant after the process is gone.
    let is_new = || fs::read(mnt.join("file")).unwrap() == new;
    eventually("what was there before the group, whose writer was killed", is_new);
    // Nothing is left that would keep others from a group of their own, or the file from a sync.
    let again = format!("{HEAD}\nfd = os.open('file', os.O_RDWR)\nstart(fd)\nos.pwrite(fd, b'y', 7)\ncommit(fd)");
    eventually("the end of the group", || {
        run_in(&mnt, "python3", &["-c", &again]).is_ok()
    });
    let mut expected = new;
    expected[7] = b'y';
    shell(&mnt, "sync -f .").unwrap();
    assert!(fs::read(mnt.join("file")).unwrap() == expected);
    unmount(&mnt);
    scratch.assert_clean();
    let by_kernel = |dir: &std::path::Path| {
        assert!(fs::read(dir.join("file")).unwrap() == expected, "by the kernel");
        Ok(())
    };
    let Some(()) = need::kernel_btrfs() else { return };
    KernelVolume::copy_of(&[&scratch.image])
        .unwrap()
        .with_mount(by_kernel)
        .unwrap();
}
