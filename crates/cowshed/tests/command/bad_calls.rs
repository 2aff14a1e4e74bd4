//! Calls about subvolumes that fail: each error is that of the kernel, on a copy of the same
//! volume, and nothing is lost.

use std::fs;
use std::path::Path;

use cowshed_harness::{KernelVolume, VolumeOptions, need, run_in, shell};

use crate::btrfs::{can_compare, kernel_mount, text, with_own_mount};
use crate::btrfs_ioctls::HEAD;
use crate::mount::{Guard, unmount};
use crate::support::run;

const SEED: &str = "
    for name in plain nested nested/inner victim default mounted open cwd covered; do btrfs -q subvolume create $name; done
    mkdir dir victim/dir; echo x >file; echo y >plain/file; echo z >open/file
    btrfs -q subvolume snapshot -r plain frozen
    btrfs -q subvolume set-default default";

/// Prints a line for each call: a name, and the error. Arguments: the top level, a directory on
/// another volume of the same kind.
const BAD_CALLS: &str = r#"
top, other = sys.argv[1], sys.argv[2]
def at(name): return os.path.join(top, name)
def says(what, error): print(what, errno.errorcode.get(error, error))
def snapshot(source, where, name, flags=0):
    fd = os.open(source, os.O_RDONLY)
    error = call(where, 0x50009417, struct.pack("<qQQ32x", fd, 0, flags) + name, 4096)[0]
    os.close(fd)
    return error
def by_id(path, number): return call(path, DESTROY_V2, named2(struct.pack("<Q", number), 1 << 4), 4096)[0]
def flags(path, value): return call(path, 0x4008941a, struct.pack("<Q", value))[0]
def sys_error(act):
    try: act()
    except OSError as error: return error.errno
    return 0

NAMES = [b"", b".", b"..", b"a/b", b"/", b"x" * 255, b"x" * 256, b"x" * 4039, b"file", b"dir", b"plain"]
for name in NAMES:
    shown = name[:20].decode() + str(len(name))
    says("create " + shown, call(top, CREATE, struct.pack("<q", 0) + name, 4096)[0])
    says("create v2 " + shown, call(top, CREATE_V2, named2(name), 4096)[0])
    says("snapshot " + shown, snapshot(at("plain"), top, name))
    says("delete " + shown, call(top, DESTROY, struct.pack("<q", 0) + name, 4096)[0])
    says("delete v2 " + shown, call(top, DESTROY_V2, named2(name), 4096)[0])
    if not os.path.isdir(at("plain")):
        assert vol(top, CREATE, "plain") == 0
        open(at("plain/file"), "w").write("y\n")
# No zero ends the name.
says("create without end", call(top, CREATE, struct.pack("<q", 0) + b"x" * 4088, 4096)[0])
says("delete without end", call(top, DESTROY, struct.pack("<q", 0) + b"x" * 4088, 4096)[0])
for where in ["file", "frozen", "plain/file", "dir"]:
    says("create in " + where, vol(at(where), CREATE, "new"))
    says("snapshot into " + where, snapshot(at("plain"), at(where), b"new2"))
    says("delete in " + where, vol(at(where), DESTROY, "none"))
for source in ["dir", "file", "plain/file", "nested/inner/..", "frozen/file", "frozen"]:
    says("snapshot of " + source, snapshot(at(source), top, b"of-" + source.replace("/", "-").encode()))
for fd in [-1, 9999]:
    says("snapshot of %d" % fd, call(top, 0x50009417, struct.pack("<qQQ32x", fd, 0, 0) + b"no", 4096)[0])
says("snapshot across volumes", snapshot(other, top, b"no"))
says("snapshot into another volume", snapshot(at("plain"), other, b"no"))
says("snapshot of another file system", snapshot("/proc", top, b"no"))
for bits in [1 << 0, 1 << 3, 1 << 5, 1 << 40]:
    says("snapshot with flag %x" % bits, snapshot(at("plain"), top, b"flagged", bits))

says("delete the default", vol(top, DESTROY, "default"))
says("delete the default by id", by_id(top, number(at("default"))))
says("delete one with one in it", vol(top, DESTROY, "nested"))
says("delete one with one in it by id", by_id(top, number(at("nested"))))
says("rmdir one with one in it", sys_error(lambda: os.rmdir(at("nested"))))
says("rmdir a full one", sys_error(lambda: os.rmdir(at("plain"))))
says("unlink one", sys_error(lambda: os.unlink(at("plain"))))
says("delete a directory", vol(top, DESTROY, "dir"))
says("delete a file", vol(top, DESTROY, "file"))
for id in [0, 1, 5, 7, 255, 999, 2**64 - 9, 2**64 - 1]:
    says("delete by id %d" % id, by_id(top, id))
says("delete what is a mount point", vol(top, DESTROY, "covered"))
open_file = open(at("open/file"))
says("delete one with an open file", vol(top, DESTROY, "open"))
print("it can be read still", open_file.read())
says("delete it again", vol(top, DESTROY, "open"))
here = os.getcwd()
os.chdir(at("cwd"))
says("delete the working directory", vol(here, DESTROY, "cwd"))
says("make one in it", vol(".", CREATE, "new"))
os.chdir(here)
victim = os.open(at("victim/dir"), os.O_RDONLY)
says("delete one with an open directory", vol(top, DESTROY, "victim"))
says("make a file there", sys_error(lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=victim)))

for value in [1, 3, 4, 8, 2**63]:
    says("flags %x" % value, flags(at("plain"), value))
says("flags of a directory", flags(at("dir"), 2))
says("flags of a file", flags(at("file"), 2))
says("flags of one received", flags(at("frozen"), 2))
for id in [0, 1, 7, 255, 999, 2**64 - 1]:
    says("default %d" % id, call(top, 0x40089413, struct.pack("<Q", id))[0])
    done(call(top, 0x40089413, struct.pack("<Q", number(at("default")))))
print(sorted(os.listdir(top)))
print(open(at("plain/file")).read(), open(at("frozen/file")).read(), open(at("file")).read())
"#;

fn python(dir: &Path, script: &str, other: &Path) -> String {
    let other = text(other);
    run_in(dir, "python3", &["-c", &format!("{HEAD}{script}"), ".", &other]).unwrap()
}

/// Deleting the empty name, or `.`, is `EACCES` on Linux 6.18 and `EINVAL` on 5.10.
fn is_of_an_old_kernel(ours: &str, theirs: &str) -> bool {
    let is_old = cowshed_harness::kernel::kernel_version() < (6, 18);
    is_old && ours.starts_with("delete ") && ours.ends_with(" EACCES") && theirs.ends_with(" EINVAL")
}

fn assert_same_lines(ours: &str, theirs: &str) {
    let lines = ours.lines().zip(theirs.lines());
    let differing: Vec<_> = lines.filter(|(a, b)| a != b && !is_of_an_old_kernel(a, b)).collect();
    assert!(differing.is_empty(), "ours, the kernel's: {differing:#?}");
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

/// A volume with the seed, and a copy of it.
fn two(options: &VolumeOptions, seed: &str) -> [KernelVolume; 2] {
    let volume = KernelVolume::make(options).unwrap();
    volume.with_mount(|root| shell(root, seed)).unwrap();
    let copy = KernelVolume::copy_of(&[volume.image()]).unwrap();
    [volume, copy]
}

#[test]
fn bad_calls_about_subvolumes_fail_as_the_kernels() {
    let (Some(()), Some(())) = (can_compare(), need::tool("python3")) else {
        return;
    };
    let others = [0, 1].map(|_| KernelVolume::make(&VolumeOptions::default()).unwrap());
    let [by_kernel, by_us] = two(&VolumeOptions::default(), SEED);

    let mounted = by_kernel.mount_with("noatime,subvolid=5").unwrap();
    let other = others[0].mount().unwrap();
    // Linux takes a mount away with the subvolume that it is on.
    let cover = ["mount --bind dir covered", "! mountpoint -q covered || umount covered"];
    shell(mounted.dir(), cover[0]).unwrap();
    let theirs = python(mounted.dir(), BAD_CALLS, other.dir());
    shell(mounted.dir(), cover[1]).unwrap();
    other.unmount().unwrap();
    mounted.unmount().unwrap();

    let [mnt, other_mnt] = [(&by_us, "mnt"), (&others[1], "other")].map(|(volume, name)| {
        let mnt = volume.dir().join(name);
        fs::create_dir_all(&mnt).unwrap();
        mnt.canonicalize().unwrap()
    });
    let (guard, other_guard) = (Guard(&mnt), Guard(&other_mnt));
    run("mount -o noatime,subvolid=5 {} {}", &[by_us.image(), &mnt]).ok();
    run("mount {} {}", &[others[1].image(), &other_mnt]).ok();
    shell(&mnt, cover[0]).unwrap();
    let ours = python(&mnt, BAD_CALLS, &other_mnt);
    shell(&mnt, cover[1]).unwrap();
    unmount(&other_mnt);
    unmount(&mnt);
    drop((guard, other_guard));
    by_us.assert_clean();
    // A deleted subvolume that is in use can be read, and not be written (COMPAT.md).
    let (rest, written): (Vec<_>, Vec<_>) = ours.lines().partition(|line| !is_change_of_deleted(line));
    assert_eq!(written, ["make one in it EROFS", "make a file there EROFS"]);
    let theirs: Vec<_> = theirs.lines().filter(|line| !is_change_of_deleted(line)).collect();
    assert_same_lines(&rest.join("\n"), &theirs.join("\n"));
}

fn is_change_of_deleted(line: &str) -> bool {
    ["make one in it", "make a file there"]
        .iter()
        .any(|what| line.starts_with(what))
}

/// Fills the volume, then makes snapshots and deletes. Prints errors.
const FULL: &str = r#"
top = sys.argv[1]
def at(name): return os.path.join(top, name)
def says(what, error): print(what, errno.errorcode.get(error, error))
fd = os.open(at("plain/large"), os.O_CREAT | os.O_WRONLY)
try:
    while True:
        os.write(fd, b"x" * (1 << 20))
        os.fsync(fd)
except OSError as error:
    says("write", error.errno)
os.close(fd)
def snapshot(name, flags):
    source = os.open(at("plain"), os.O_RDONLY)
    error = call(top, 0x50009417, struct.pack("<qQQ32x", source, 0, flags) + name, 4096)[0]
    os.close(source)
    return error
for turn in range(20):
    says("snapshot", snapshot(b"snap%d" % turn, turn % 2 * 2))
for turn in range(20):
    says("delete", vol(top, DESTROY, "snap%d" % turn))
says("create", vol(top, CREATE, "new"))
says("delete the full one", vol(top, DESTROY, "plain"))
print(sorted(os.listdir(top)))
"#;

#[test]
fn full_volume_takes_snapshots_and_deletions_as_the_kernels() {
    let (Some(()), Some(())) = (can_compare(), need::tool("python3")) else {
        return;
    };
    let options = VolumeOptions {
        size_bytes: 200 << 20,
        ..VolumeOptions::default()
    };
    let [by_kernel, by_us] = two(&options, "btrfs -q subvolume create plain; echo x >plain/file");
    let (mounted, root) = kernel_mount(&by_kernel);
    let theirs = python(Path::new(&root), FULL, Path::new("/"));
    mounted.unmount().unwrap();
    let mut ours = String::new();
    with_own_mount(&by_us, "noatime", |root| {
        ours = python(Path::new(root), FULL, Path::new("/"));
    });
    by_us.assert_clean();
    assert_same_lines(&ours, &theirs);
}
