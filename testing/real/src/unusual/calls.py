"""Calls that programs make now and then, in a directory: prints a line with the result of each.

Run on two file systems, the lines are the same but for the differences that the caller knows.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
renameat2, syncfs, sync_file_range = 316, 306, 277
OFD_SETLK = 37
GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND, NOCOW, COMPRESS = 0x10, 0x20, 0x800000, 0x4


def name_of(error):
    return errno.errorcode.get(error, str(error))


def case(name, call):
    try:
        result = call()
    except OSError as error:
        result = name_of(error.errno)
    print(f"{name}: {result}", flush=True)


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def write(path, data=b"", mode="wb"):
    with open(path, mode) as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def opened(path, flags=os.O_RDWR | os.O_CREAT):
    return os.open(path, flags, 0o644)


def python(code):
    """What another process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30).stdout.split()


def grows(path, field, call):
    """Whether a time is later after the call."""
    before = getattr(os.stat(path), field)
    time.sleep(0.02)
    call()
    return getattr(os.stat(path), field) > before


def locks():
    write("locked")
    one, two = opened("locked"), opened("locked")
    case("flock", lambda: fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB))
    case("flock of another", lambda: fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB))
    fcntl.flock(one, fcntl.LOCK_UN)
    ofd = lambda fd, kind: fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi4x", kind, 0, 0, 10, 0)) and None
    case("lock of a description", lambda: ofd(one, fcntl.F_WRLCK))
    case("lock of another description", lambda: ofd(two, fcntl.F_WRLCK))
    ofd(one, fcntl.F_UNLCK)
    case("lease", lambda: fcntl.fcntl(one, 1024, fcntl.F_RDLCK))
    case("record lock", lambda: fcntl.lockf(one, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0))
    other = (
        "import fcntl\nfile = open('locked', 'r+')\n"
        "for start in 3, 6:\n"
        "    try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start); print('got')\n"
        "    except OSError as error: print(error.errno)"
    )
    case("record lock of a process", lambda: python(other))
    os.close(one)
    os.close(two)


def programs():
    write("program", b"#!/bin/sh\necho hi $1\n")
    os.chmod("program", 0o755)
    case("run a script", lambda: subprocess.run(["./program", "x"], capture_output=True).stdout)
    subprocess.run(["cp", "/bin/sleep", "sleeps"], check=True)
    running = subprocess.Popen(["./sleeps", "20"])
    time.sleep(0.2)
    case("write a program that runs", lambda: os.open("sleeps", os.O_WRONLY))
    case("truncate a program that runs", lambda: os.truncate("sleeps", 0))
    running.kill()
    running.wait()
    file = os.open("sleeps", os.O_WRONLY)
    case("run what is written", lambda: subprocess.run(["./sleeps", "0"]).returncode)
    os.close(file)


def mappings():
    write("mapped", b"a" * 10000)
    file = opened("mapped")
    shared = mmap.mmap(file, 10000)
    shared[0:3] = b"xyz"
    case("read what was stored", lambda: read("mapped")[:4])
    os.pwrite(file, b"Q", 5000)
    case("load what was written", lambda: shared[5000:5001])
    os.ftruncate(file, 100)
    os.ftruncate(file, 10000)
    case("load what was cut off", lambda: shared[90:110])
    case("read what was cut off", lambda: read("mapped")[90:110])
    private = mmap.mmap(file, 10000, flags=mmap.MAP_PRIVATE)
    private[0:1] = b"P"
    case("store in a private mapping", lambda: read("mapped")[:1])

    def store():
        shared[1:2] = b"k"
        shared.flush()

    case("mtime after a store", lambda: grows("mapped", "st_mtime_ns", store))
    os.close(file)
    write("short", b"a" * 8192)
    beyond = (
        "import mmap, os\nfile = os.open('short', os.O_RDWR)\nmapped = mmap.mmap(file, 8192)\n"
        "os.ftruncate(file, 4096)\nprint(mapped[5000])"
    )
    killed = lambda: subprocess.run([sys.executable, "-c", beyond], capture_output=True).returncode
    case("load beyond the end", killed)
    file = opened("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    pages = mmap.mmap(-1, 8192)
    pages[:] = b"D" * 8192
    case("direct write", lambda: os.pwrite(file, pages, 0))
    case("read what was written directly", lambda: read("direct")[4090:4100])
    case("direct write at an odd offset", lambda: os.pwrite(file, pages, 100))
    case("direct read of an odd length", lambda: os.preadv(file, [memoryview(pages)[:100]], 0))
    os.close(file)


def attributes():
    write("attributes")
    write("caps")
    os.symlink("attributes", "link")
    a_set = lambda name, value=b"1", **how: lambda: os.setxattr("attributes", name, value, **how)
    case("attribute of 64 KiB", a_set("user.a", b"v" * 65536))
    case("attribute of 16,000 bytes", a_set("user.a", b"v" * 16000))
    case("empty attribute", lambda: (a_set("user.e", b"")(), os.getxattr("attributes", "user.e")))
    case("attribute name of 255", a_set("user." + "n" * 250))
    case("attribute name of 256", a_set("user." + "n" * 251))
    case("create what is there", a_set("user.e", flags=os.XATTR_CREATE))
    case("replace what is not", a_set("user.no", flags=os.XATTR_REPLACE))
    for name in ["foo.bar", "user.", "security.foo", "system.foo", "trusted.t"]:
        case(f"attribute {name}", a_set(name))
    case("user attribute of a link", lambda: os.setxattr("link", "user.a", b"1", follow_symlinks=False))
    case("trusted attribute of a link", lambda: os.setxattr("link", "trusted.a", b"1", follow_symlinks=False))
    case("wrong property", a_set("btrfs.compression", b"wrong"))
    case("property", a_set("btrfs.compression", b"zstd"))
    case("names", lambda: sorted(os.listxattr("attributes")))
    os.setxattr("caps", "security.capability", struct.pack("<IIIII", 0x02000001, 1, 0, 0, 0))
    write("caps", b"1", "ab")
    case("capability after a write", lambda: os.getxattr("caps", "security.capability"))


def names():
    case("name of 255", lambda: write("n" * 255))
    case("name of 256", lambda: write("n" * 256))
    case("path that is too long", lambda: os.stat("a/" * 2100))
    case("name of any bytes", lambda: write(b"\xff\xfe\x01"))
    case("three dots", lambda: os.mkdir("..."))
    case("create with a slash", lambda: write("slash/"))
    case("mkdir .", lambda: os.mkdir("."))
    case("rmdir .", lambda: os.rmdir("."))
    case("rmdir ..", lambda: os.rmdir(".."))
    case("unlink a directory", lambda: os.unlink("..."))
    case("rename .", lambda: os.rename(".", "dot"))
    case("link of 4095", lambda: os.symlink("a" * 4095, "long"))
    case("link of 4096", lambda: os.symlink("a" * 4096, "longer"))
    case("empty link", lambda: os.symlink("", "empty"))
    os.symlink("ring", "ring")
    case("ring of links", lambda: os.stat("ring"))
    case("open a link itself", lambda: os.open("long", os.O_RDONLY | os.O_NOFOLLOW))
    case("size of a link", lambda: os.fstat(os.open("long", os.O_PATH | os.O_NOFOLLOW)).st_size)


def directories():
    os.makedirs("one/two")
    os.mkdir("full")
    write("full/file")
    write("plain")
    case("rename into itself", lambda: os.rename("one", "one/two/x"))
    case("remove a full one", lambda: os.rmdir("one"))
    case("rename over a full one", lambda: os.rename("one", "full"))
    case("rename a file over one", lambda: os.rename("plain", "full"))
    case("rename one over a file", lambda: os.rename("full", "plain"))
    case("link to one", lambda: os.link("full", "full2"))
    case("links and size", lambda: (os.stat("one").st_nlink, os.stat("full").st_size))
    case("open a file as one", lambda: os.open("plain", os.O_DIRECTORY))
    gone = os.open("full", os.O_RDONLY)
    os.unlink("full/file")
    os.rmdir("full")
    case("create in one that is gone", lambda: os.open("x", os.O_CREAT | os.O_RDWR, dir_fd=gone))
    case("list one that is gone", lambda: os.listdir(gone))
    case("links of one that is gone", lambda: os.fstat(gone).st_nlink)
    os.close(gone)
    os.mkdir("many")
    for number in range(1000):
        write(f"many/{number}")
    removed = 0
    for entry in os.scandir("many"):
        os.unlink(entry.path)
        removed += 1
    case("remove while listing", lambda: (removed, os.listdir("many")))
    listed = os.listdir(".")
    case("inodes differ", lambda: len({entry.inode() for entry in os.scandir(".")}) == len(listed))


def exchanges():
    write("left", b"left")
    write("right", b"right")
    rename = lambda old, new, flags: check(libc.syscall(renameat2, -100, old, -100, new, flags))
    case("exchange", lambda: (rename(b"left", b"right", 2), read("left")))
    case("rename over nothing", lambda: rename(b"left", b"right", 1))
    case("exchange with nothing", lambda: rename(b"left", b"nothing", 2))
    case("both flags", lambda: rename(b"left", b"right", 3))
    case("whiteout", lambda: (rename(b"left", b"white", 4), oct(os.stat("left").st_mode), os.stat("left").st_rdev))


def unnamed():
    file = opened("gone")
    os.write(file, b"abc")
    os.unlink("gone")
    case("links", lambda: os.fstat(file).st_nlink)
    case("link a deleted file", lambda: os.link(f"/proc/self/fd/{file}", "back", follow_symlinks=True))
    case("attribute of a deleted file", lambda: os.setxattr(file, "user.k", b"v"))
    os.close(file)

    def link(name, more):
        file = os.open(".", os.O_RDWR | os.O_TMPFILE | more, 0o600)
        try:
            os.write(file, b"text")
            linked = os.link(f"/proc/self/fd/{file}", name, follow_symlinks=True)
            return linked, read(name), os.stat(name).st_nlink
        finally:
            os.close(file)

    for name, more in [("temporary", 0), ("exclusive", os.O_EXCL)]:
        case(f"link a {name} file", lambda: link(name, more))


def times():
    write("timed", b"12")
    for at in [-(2**31), -1, 0, 2**31, 2**32, 2**34 - 1, 2**35, -(2**33)]:
        os.utime("timed", ns=(at * 10**9 + 5, at * 10**9 + 7))
        case(f"time {at}", lambda: (os.stat("timed").st_mtime_ns, os.stat("timed").st_atime_ns))
    case("ctime of chmod", lambda: grows("timed", "st_ctime_ns", lambda: os.chmod("timed", 0o644)))
    file = opened("timed")
    case("mtime of a write of nothing", lambda: grows("timed", "st_mtime_ns", lambda: os.write(file, b"")))
    case("mtime of ftruncate to its size", lambda: grows("timed", "st_mtime_ns", lambda: os.ftruncate(file, 2)))
    case("mtime of truncate to its size", lambda: grows("timed", "st_mtime_ns", lambda: os.truncate("timed", 2)))
    case("ctime of truncate to its size", lambda: grows("timed", "st_ctime_ns", lambda: os.truncate("timed", 2)))
    os.ftruncate(file, 0)
    case("mtime of truncate of an empty file", lambda: grows("timed", "st_mtime_ns", lambda: os.truncate("timed", 0)))
    emptied = lambda: os.close(os.open("timed", os.O_WRONLY | os.O_TRUNC))
    case("mtime of O_TRUNC of an empty file", lambda: grows("timed", "st_mtime_ns", emptied))
    os.close(file)


def sizes():
    file = opened("large")
    case("largest size", lambda: (os.ftruncate(file, 2**63 - 1), os.fstat(file).st_size, os.fstat(file).st_blocks))
    case("write at the end of all", lambda: os.pwrite(file, b"xx", 2**63 - 2))
    case("data in nothing", lambda: os.lseek(file, 2**62, os.SEEK_DATA))
    os.close(file)
    file = opened("sparse")
    os.pwrite(file, b"x", 10**12)
    os.fsync(file)
    case("blocks of one byte", lambda: os.fstat(file).st_blocks)
    for what, at in [("DATA", 0), ("HOLE", 0), ("HOLE", 2 * 10**12), ("DATA", 10**12 + 1), ("HOLE", 10**12)]:
        case(f"SEEK_{what} from {at}", lambda: os.lseek(file, at, getattr(os, f"SEEK_{what}")))
    os.close(file)
    file = opened("allocated")
    allocate = lambda mode, offset, len: check(libc.fallocate(file, mode, ctypes.c_long(offset), ctypes.c_long(len)))
    for mode in [0, 1, 3, 2, 0x10, 0x11, 0x20, 0x8, 0x40, 0x80]:
        case(f"fallocate {mode:#x}", lambda: (allocate(mode, 4096, 8192), os.fstat(file).st_size))
    case("fallocate nothing", lambda: allocate(0, 0, 0))
    case("fallocate before the start", lambda: allocate(0, -1, 5))
    case("fallocate too much", lambda: allocate(0, 0, 2**62))
    os.close(file)


def copies():
    write("source", b"0123456789" * 1000)
    source, target = opened("source"), opened("target")
    case("copy", lambda: (os.copy_file_range(source, target, 5000, 100, 7), os.fstat(target).st_size))
    case("copy onto itself", lambda: os.copy_file_range(source, source, 100, 0, 50))
    case("copy within a file", lambda: os.copy_file_range(source, source, 100, 0, 5000))
    case("copy from the end", lambda: os.copy_file_range(source, target, 100, 10000, 0))
    case("sendfile", lambda: os.sendfile(target, source, 0, 3000))
    out, into = os.pipe()
    case("splice from it", lambda: os.splice(source, into, 500, offset_src=10))
    case("splice to it", lambda: os.splice(out, target, 500, offset_dst=20))
    appends = os.open("target", os.O_WRONLY | os.O_APPEND)
    case("copy to what appends", lambda: os.copy_file_range(source, appends, 10, 0))
    case("pwrite to what appends", lambda: (os.pwrite(appends, b"Z", 0), os.fstat(appends).st_size, read("target")[-1:]))
    case("pwritev2 that appends", lambda: (os.pwritev(target, [b"END"], 0, 0x10), os.fstat(target).st_size))
    case("pwritev2 that syncs", lambda: os.pwritev(target, [b"q"], 0, os.RWF_DSYNC))
    case("read without waiting", lambda: os.preadv(target, [bytearray(5)], 0, os.RWF_NOWAIT))
    for advice in [os.POSIX_FADV_WILLNEED, os.POSIX_FADV_DONTNEED]:
        case(f"advice {advice}", lambda: os.posix_fadvise(target, 0, 0, advice))
    case("sync_file_range", lambda: check(libc.syscall(sync_file_range, target, 0, 0, 7)))
    case("syncfs", lambda: check(libc.syscall(syncfs, target)))
    case("fsync of what is read", lambda: os.fsync(os.open("target", os.O_RDONLY)))
    case("fsync of a directory", lambda: os.fsync(os.open(".", os.O_RDONLY)))
    case("contents", lambda: (len(read("target")), read("target")[:30]))


def special():
    os.mkfifo("fifo")
    bound = socket.socket(socket.AF_UNIX)
    case("bind a socket", lambda: bound.bind("socket"))
    case("open a socket", lambda: os.open("socket", os.O_RDONLY))
    case("open a fifo", lambda: os.open("fifo", os.O_WRONLY | os.O_NONBLOCK))
    case("device", lambda: (os.mknod("null", 0o600 | stat.S_IFCHR, os.makedev(1, 3)), os.stat("null").st_rdev))
    wide = os.makedev(4000, 300000)
    case("device of wide numbers", lambda: (os.mknod("wide", 0o600 | stat.S_IFBLK, wide), os.stat("wide").st_rdev))


def owners():
    mode = lambda path: oct(os.stat(path).st_mode)
    write("owned")
    os.chmod("owned", 0o7777)
    case("mode", lambda: mode("owned"))
    os.chown("owned", 1000, 1000)
    case("mode after chown", lambda: mode("owned"))
    os.chmod("owned", 0o6777)
    write("owned", b"1", "ab")
    case("mode after a write of root", lambda: mode("owned"))
    os.mkdir("group")
    os.chown("group", 0, 77)
    os.chmod("group", 0o2775)
    write("group/file")
    os.mkdir("group/dir")
    case("set-gid directory", lambda: [(os.stat(f"group/{at}").st_gid, mode(f"group/{at}")) for at in ("file", "dir")])
    case("chown to none", lambda: (os.chown("owned", -1, -1), os.stat("owned").st_uid))
    case("largest owner", lambda: (os.chown("owned", 2**32 - 2, 2**32 - 2), os.stat("owned").st_uid))


def limits():
    about = os.statvfs(".")
    case("statvfs", lambda: (about.f_bsize, about.f_frsize, about.f_namemax, about.f_files, about.f_ffree))
    watch = libc.inotify_init1(0o4000)
    libc.inotify_add_watch(watch, b".", 0xFFF)
    write("watched", b"1")
    os.rename("watched", "watched2")
    os.unlink("watched2")
    events, text = [], os.read(watch, 8192)
    while text:
        _, mask, _, name_len = struct.unpack("iIII", text[:16])
        events.append(hex(mask))
        text = text[16 + name_len :]
    case("inotify", lambda: events)
    file = opened("limited")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    results = []
    for text in [b"a" * 2000, b"b"]:
        try:
            results.append(os.write(file, text))
        except OSError as error:
            results.append(name_of(error.errno))
    # Before anything is printed: that may go to a file, too.
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    case("write over the limit, and at it", lambda: results)
    case("size at the limit", lambda: os.fstat(file).st_size)


def flags():
    write("flagged", b"1")
    file = opened("flagged")
    change = lambda bits: fcntl.ioctl(file, SETFLAGS, struct.pack("q", bits)) and None
    case("flags", lambda: struct.unpack("q", fcntl.ioctl(file, GETFLAGS, b"\0" * 8)))
    case("unknown ioctl", lambda: fcntl.ioctl(file, 0x12345))
    case("bytes to read", lambda: struct.unpack("i", fcntl.ioctl(file, 0x541B, b"\0" * 4)))
    case("make append-only", lambda: change(APPEND))
    case("write to what became append-only", lambda: os.pwrite(file, b"1", 0))
    case("truncate append-only", lambda: os.ftruncate(file, 0))
    case("unlink append-only", lambda: os.unlink("flagged"))
    case("open append-only", lambda: os.open("flagged", os.O_WRONLY))
    case("append", lambda: os.write(os.open("flagged", os.O_WRONLY | os.O_APPEND), b"2"))
    change(0)
    case("make immutable", lambda: change(IMMUTABLE))
    case("write to what became immutable", lambda: os.pwrite(file, b"1", 0))
    for what, call in {
        "chmod": lambda: os.chmod("flagged", 0o600),
        "link": lambda: os.link("flagged", "flagged2"),
        "rename": lambda: os.rename("flagged", "flagged3"),
        "utime": lambda: os.utime("flagged"),
        "setxattr": lambda: os.setxattr("flagged", "user.z", b"1"),
        "open": lambda: os.open("flagged", os.O_WRONLY),
    }.items():
        case(f"{what} of an immutable file", call)
    change(0)
    case("no copy-on-write of a file with data", lambda: change(NOCOW))
    case("compression without copy-on-write", lambda: change(NOCOW | COMPRESS))
    os.close(file)


def another_user():
    os.chmod(".", 0o1777)
    write("of_root")
    os.chmod("of_root", 0o666)
    code = """
import os
os.setgroups([]); os.setgid(1000); os.setuid(1000)
for call in [
    lambda: os.unlink('of_root'), lambda: os.utime('of_root'), lambda: os.utime('of_root', (1, 1)),
    lambda: os.chmod('of_root', 0o777), lambda: os.link('of_root', 'of_root2'),
    lambda: os.setxattr('of_root', 'user.u', b'1'), lambda: os.setxattr('of_root', 'trusted.u', b'1'),
    lambda: os.listxattr('of_root'), lambda: os.chown('of_root', 1000, 1000), lambda: os.mknod('device', 0o20600, 259),
    lambda: os.close(os.open('mine', os.O_CREAT | os.O_RDWR, 0o4777)), lambda: os.chmod('mine', 0o2777),
    lambda: oct(os.stat('mine').st_mode), lambda: os.chown('mine', 1000, 0), lambda: os.truncate('of_root', 5),
    lambda: os.rename('of_root', 'q'), lambda: os.access('of_root', os.W_OK), lambda: os.access('group', os.W_OK),
    lambda: sorted(os.listdir('group')), lambda: os.mkdir('group/z'),
]:
    try: print(str(call()).replace(' ', ''))
    except OSError as error: print(error.errno)
"""
    case("another user", lambda: python(code))


def whole_volume():
    """What containers and watchers ask of a file system rather than of a file."""
    file = opened("in epoll")
    case("regular file in epoll", lambda: select.epoll().register(file, select.EPOLLIN))
    os.close(file)
    FREEZE, THAW = 0xC0045877, 0xC0045878
    here = os.open(".", os.O_RDONLY)
    case("freeze", lambda: fcntl.ioctl(here, FREEZE, 0) or fcntl.ioctl(here, THAW, 0))
    swap = opened("swap")
    fcntl.ioctl(swap, SETFLAGS, struct.pack("q", NOCOW))
    os.posix_fallocate(swap, 0, 1 << 20)
    header = struct.pack("1024xIII", 1, 255, 0)
    os.pwrite(swap, header.ljust(4086, b"\0") + b"SWAPSPACE2", 0)
    os.fsync(swap)
    os.close(swap)
    case("swap to a file", lambda: check(libc.syscall(167, b"swap", 0)) or check(libc.syscall(168, b"swap")))
    SUBVOL = 0x8000
    found = ctypes.create_string_buffer(256)
    check(libc.syscall(332, here, b"", 0x1000, SUBVOL, found))
    case("number of the subvolume by statx", lambda: bool(struct.unpack("I", found.raw[:4])[0] & SUBVOL))
    # FAN_CLASS_NOTIF | FAN_REPORT_DFID_NAME
    watch = check(libc.syscall(300, 0xC00, 0))
    for what, target in ("directory", 0), ("volume", 0x100):
        mark = lambda: check(libc.syscall(301, watch, 1 | target, ctypes.c_uint64(0x102), here, None))
        case(f"watch of a {what} with file ids", mark)
    os.close(watch)
    child = subprocess.Popen(["unshare", "--user", "sleep", "60"])
    while os.readlink(f"/proc/{child.pid}/ns/user") == os.readlink("/proc/self/ns/user"):
        assert child.poll() is None, "no user namespace can be made here"
        time.sleep(0.01)
    for ids in "uid_map", "gid_map":
        write(f"/proc/{child.pid}/{ids}", b"0 100000 65536")
    users = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY)
    tree = check(libc.syscall(428, -100, b".", ctypes.c_uint(0x80001)))
    attributes = struct.pack("QQQQ", 0x100000, 0, 0, users)
    case("idmapped mount", lambda: check(libc.syscall(442, tree, b"", 0x1000, attributes, len(attributes))))
    child.kill()
    child.wait()
    for file in tree, users, here:
        os.close(file)


for part in [
    locks, programs, mappings, attributes, names, directories, exchanges, unnamed, times, sizes, copies, special,
    owners, limits, flags, whole_volume, another_user,
]:  # fmt: skip
    print(f"-- {part.__name__}")
    part()
print("-- end")
