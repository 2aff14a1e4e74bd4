//! `mount` and `umount`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::PoisonError;
use std::time::Duration;

use cowshed_harness::{KernelMount, KernelVolume, VolumeOptions, limit, need, shell};

use crate::support::{COWSHED, SOON, Scratch, WHOLE_SYNC, eventually, in_name_space, run};

/// What a sync of the whole machine may take.
const SYNC_MAX: Duration = Duration::from_secs(60);

pub fn can_mount() -> Option<()> {
    need::root()?;
    need::fuse()
}

pub fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.into());
    table.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// Takes the mount away whatever becomes of the test.
pub struct Guard<'a>(pub &'a Path);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            let _ = cowshed_harness::run("umount", &["-l".as_ref(), self.0.as_os_str()]);
        }
    }
}

/// Unmounts. Another thread that starts a process has our descriptors in it for a moment: then the
/// mount is busy.
#[track_caller]
pub fn unmount(dir: &Path) {
    eventually("umount", || {
        let ran = run("umount {}", &[dir]);
        if ran.code != 0 && ran.err.contains("busy") {
            return false;
        }
        ran.ok();
        true
    });
}

/// A process that serves a mount. It does not outlive its test.
pub struct Server(Child);

impl Server {
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = limit::kill(&mut self.0);
    }
}

/// `cowshed mount -f`, when it answers.
fn foreground(volume: &Scratch, dir: &Path) -> Server {
    foreground_with(&[], &volume.image, dir)
}

/// `mount -f` with further arguments, when it answers.
pub fn foreground_with(args: &[&str], volume: &Path, dir: &Path) -> Server {
    let started = Command::new(COWSHED)
        .args(["mount", "-f"])
        .args(args)
        .args([volume, dir])
        .stdin(Stdio::null())
        .spawn();
    let server = Server(started.unwrap());
    eventually("the mount", || is_mounted(dir));
    server
}

/// How the process ended, which it does soon.
#[track_caller]
pub fn ended(server: &mut Server) -> ExitStatus {
    let ended = limit::wait(&mut server.0, SOON).unwrap();
    ended.expect("the process ends soon")
}

pub fn kill(server: &Server, signal: &str) {
    let id = server.0.id().to_string();
    cowshed_harness::run("kill", &[signal, &id]).unwrap();
}

#[test]
fn what_is_written_is_on_disk_when_umount_returns() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    for round in 0..5 {
        run("mount {} {}", &[&volume.image, &dir]).ok();
        assert!(is_mounted(&dir));
        for n in 0..50 {
            fs::write(dir.join(format!("{round}-{n}")), vec![b'x'; n * 1000]).unwrap();
        }
        unmount(&dir);
        assert!(!is_mounted(&dir));
        // The lock is free at once, and all of it is there.
        volume.assert_clean();
        assert_eq!(
            run("ls {}", &[&volume.image]).ok().text().lines().count(),
            50 * (round + 1)
        );
    }
}

#[test]
fn a_plain_umount_loses_nothing_and_the_loop_device_goes() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount {} {}", &[&volume.image, &dir]).ok();
    fs::write(dir.join("f"), b"kept").unwrap();
    eventually("umount", || cowshed_harness::run("umount", &[&dir]).is_ok());
    eventually("the lock", || run("check {}", &[&volume.image]).code == 0);
    assert_eq!(run("cat {} f", &[&volume.image]).ok().out, b"kept");
    assert_eq!(loop_devices(&volume.image), "", "no loop device is left");
}

#[test]
fn foreground_ends_with_the_mount_and_sigterm_commits() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    let mut child = foreground(&volume, &dir);
    fs::write(dir.join("one"), b"1").unwrap();
    unmount(&dir);
    assert!(ended(&mut child).success());

    let mut child = foreground(&volume, &dir);
    // Busy: a file is open.
    let mut open = fs::File::create(dir.join("two")).unwrap();
    open.write_all(b"2").unwrap();
    kill(&child, "-TERM");
    eventually("leaving the tree", || !is_mounted(&dir));
    drop(open);
    assert!(ended(&mut child).success());
    volume.assert_clean();
    assert_eq!(run("cat {} one two", &[&volume.image]).ok().out, b"12");
}

#[test]
fn after_a_signal_the_daemon_ends_although_a_file_is_open() {
    let Some(()) = can_mount() else { return };
    for signals in [1, 2] {
        let volume = Scratch::new();
        let dir = volume.mountpoint();
        let _guard = Guard(&dir);
        let mut child = foreground(&volume, &dir);
        let mut open = fs::File::create(dir.join("f")).unwrap();
        open.write_all(b"before").unwrap();
        kill(&child, "-TERM");
        eventually("leaving the tree", || !is_mounted(&dir));
        // A process that stays is served for a moment, and what it writes is durable, too.
        open.write_all(b" and after").unwrap();
        if signals == 2 {
            kill(&child, "-TERM");
        }
        assert!(ended(&mut child).success());
        assert!(open.write_all(b"too late").is_err(), "disconnected");
        volume.assert_clean();
        assert_eq!(run("cat {} f", &[&volume.image]).ok().out, b"before and after");
    }
}

/// Linux passes syncfs(2) on to mounts of block devices only, which root's are, and to these from
/// 6.18 on.
#[test]
fn cowshed_sync_reaches_mounts_that_syncfs_does_not() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    let mut child = foreground_with(&["-o", "noloop"], &volume.image, &dir);
    fs::write(dir.join("f"), b"synced").unwrap();
    run("sync {}", &[&dir]).ok();
    let copy = volume.path("copy");
    fs::copy(&volume.image, &copy).unwrap();
    assert_eq!(run("cat {} f", &[&copy]).ok().out, b"synced");
    run("sync {}", &[&volume.path("none")]).fails(&["none", "No such file"]);
    run("sync {}", &[volume.dir.path()]).ok(); // not ours: syncfs
    unmount(&dir);
    assert!(ended(&mut child).success());
}

/// `lsattr -v` and what of btrfs-progs does not insist on a mount of the kernel's.
#[test]
fn tools_of_the_format_get_the_kernels_answers() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::kernel_btrfs() else { return };
    let kernel = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let script = "
        lsattr -v f; lsattr -v -d sub; btrfs filesystem label .; btrfs property get .
        btrfs property get sub/g compression; btrfs filesystem sync . && echo synced";
    let ask = |dir: &Path| {
        // Some of the answers are refusals.
        shell(dir, &format!("set +e; {script}\ntrue")).unwrap()
    };
    let mut expected = String::new();
    kernel
        .with_mount(|root| {
            let make = "
                btrfs filesystem label . here; btrfs subvolume create sub; touch f sub/g
                btrfs property set sub/g compression lzo; btrfs property set sub ro true";
            shell(root, make)?;
            expected = ask(root);
            Ok(())
        })
        .unwrap();
    for part in ["label=here", "ro=false", "compression=lzo", "synced"] {
        assert!(expected.contains(part), "{expected}");
    }
    let dir = kernel.dir().join("mnt");
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(&dir);
    run("mount {} {}", &[kernel.image(), &dir]).ok();
    assert_eq!(ask(&dir), expected);
    unmount(&dir);
}

#[test]
fn umount_says_when_not_everything_could_be_written() {
    let Some(()) = can_mount() else { return };
    let scratch = Scratch::new();
    // The file system below is full before the volume is.
    let (small, dir) = (scratch.path("small"), scratch.mountpoint());
    fs::create_dir(&small).unwrap();
    let tmpfs = KernelMount::new("tmpfs", &["tmpfs".as_ref()], &small, "size=16m").unwrap();
    let image = small.join("image");
    run("mkfs -q -b 300m {}", &[&image]).ok();
    let _guard = Guard(&dir);
    let mut child = foreground_with(&["-o", "noloop"], &image, &dir);
    fs::write(dir.join("before"), b"kept").unwrap();
    run("sync {}", &[&dir]).ok();
    // Written in the background, or not yet: there is no fsync that could tell.
    fs::write(dir.join("big"), vec![1; 32 << 20]).unwrap();
    run("umount {}", &[&dir]).fails(&["unmounted, but not everything could be written"]);
    assert!(!is_mounted(&dir));
    ended(&mut child);
    run("check --check-data-csum {}", &[&image]).ok();
    assert_eq!(run("cat {} before", &[&image]).ok().out, b"kept");
    tmpfs.unmount().unwrap();
}

#[test]
fn umount_does_not_wait_for_another_mount_point_of_the_same_volume() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let (dir, other) = (volume.mountpoint(), volume.path("o t"));
    fs::create_dir(&other).unwrap();
    let (_guard, _other) = (Guard(&dir), Guard(&other));
    run("mount {} {}", &[&volume.image, &dir]).ok();
    fs::write(dir.join("f"), b"x").unwrap();
    cowshed_harness::run("mount", &["--bind".as_ref(), dir.as_os_str(), other.as_os_str()]).unwrap();
    run("umount {}", &[&dir]).fails(&["still mounted on", "o t"]);
    assert_eq!(fs::read(other.join("f")).unwrap(), b"x");
    run("umount {}", &[&other]).ok();
    volume.assert_clean();
}

#[test]
fn a_killed_daemon_leaves_the_last_commit() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    let mut child = foreground(&volume, &dir);
    fs::write(dir.join("synced"), b"1").unwrap();
    run("sync {}", &[&dir]).ok();
    fs::write(dir.join("not"), b"2").unwrap();
    kill(&child, "-KILL");
    ended(&mut child);
    // Its mount is still there, without a process that serves it.
    volume.assert_clean();
    let _ = cowshed_harness::run("umount", &[&dir]);
    volume.assert_clean();
    assert_eq!(run("ls {}", &[&volume.image]).ok().text(), "synced\n");
}

#[test]
fn sync_of_the_whole_system_reaches_the_daemon() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::syncfs_of_block_devices() else {
        return;
    };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    let mut child = foreground(&volume, &dir);
    fs::write(dir.join("f"), b"synced").unwrap();
    let _alone = WHOLE_SYNC.write().unwrap_or_else(PoisonError::into_inner);
    // All file systems of the machine are in it, also one that hangs through no fault of ours.
    let synced = limit::status_within(&mut Command::new("sync"), SYNC_MAX);
    let status = synced.unwrap_or_else(|e| panic!("the machine does not come to the end of a sync: {e:#}"));
    assert!(status.success());
    let copy = volume.path("copy");
    fs::copy(&volume.image, &copy).unwrap();
    kill(&child, "-TERM");
    ended(&mut child);
    assert_eq!(run("cat {} f", &[&copy]).ok().out, b"synced");
}

#[test]
fn other_writers_are_refused_as_busy() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount {} {}", &[&volume.image, &dir]).ok();
    run("mkfs -f {}", &[&volume.image]).fails(&["busy"]);
    run("ls {}", &[&volume.image]).fails(&["busy", "mounted"]);
    run("check {}", &[&volume.image]).fails(&["busy"]);
    run("inspect super {}", &[&volume.image]).ok();
    fs::write(dir.join("f"), b"still well").unwrap();
    unmount(&dir);
    volume.assert_clean();
}

#[test]
fn read_only_mounts_change_nothing() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::filled();
    let before = fs::read(&volume.image).unwrap();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    for line in ["mount -r {} {}", "mount -o ro {} {}"] {
        run(line, &[&volume.image, &dir]).ok();
        assert_eq!(fs::read(dir.join("dir/hello")).unwrap(), b"hello\n");
        let error = fs::write(dir.join("f"), b"").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        unmount(&dir);
    }
    assert!(fs::read(&volume.image).unwrap() == before);
}

#[test]
fn subvolumes_of_the_kernel_are_mounted_by_name_and_number() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::kernel_btrfs() else { return };
    let kernel = KernelVolume::make(&VolumeOptions::default()).unwrap();
    kernel
        .with_mount(|root| {
            let subvol = root.join("sub");
            cowshed_harness::run("btrfs", &["subvolume".as_ref(), "create".as_ref(), subvol.as_os_str()])?;
            fs::write(subvol.join("inside"), b"in")?;
            Ok(fs::write(root.join("outside"), b"out")?)
        })
        .unwrap();
    let dir = kernel.dir().join("mnt");
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(&dir);
    for options in ["subvol=sub", "subvol=/sub", "subvolid=256"] {
        run(&format!("mount -o {options} {{}} {{}}"), &[kernel.image(), &dir]).ok();
        assert_eq!(fs::read(dir.join("inside")).unwrap(), b"in");
        assert!(!dir.join("outside").exists());
        unmount(&dir);
    }
    run("mount {} {}", &[kernel.image(), &dir]).ok();
    assert_eq!(fs::read(dir.join("sub/inside")).unwrap(), b"in");
    fs::write(dir.join("sub/more"), b"more").unwrap();
    unmount(&dir);
    kernel.assert_clean();
    for options in ["subvol=none", "subvolid=999", "subvol=sub,subvolid=5"] {
        run(&format!("mount -o {options} {{}} {{}}"), &[kernel.image(), &dir]).fails(&["subvolume", options]);
    }
    assert_eq!(loop_devices(kernel.image()), "", "a mount that failed leaves none");
}

fn loop_devices(image: &Path) -> String {
    cowshed_harness::run("losetup", &["-j".as_ref(), image.as_os_str()]).unwrap()
}

#[test]
fn what_the_kernel_has_mounted_is_refused_as_busy() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::kernel_btrfs() else { return };
    let kernel = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let image = kernel.image();
    let dir = kernel.dir().join("mnt");
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(&dir);
    kernel
        .with_mount(|root| {
            fs::write(root.join("f"), b"x")?;
            for line in ["mount {} {}", "mount -r {} {}"] {
                run(line, &[image, &dir]).fails(&["busy"]);
            }
            for line in ["mkfs -f {}", "ls {}", "check {}"] {
                run(line, &[image]).fails(&["busy"]);
            }
            run("inspect super {}", &[image]).ok();
            // A device of the mount's, for reading: what writes is kept out by the kernel.
            let device = loop_devices(image);
            let device = Path::new(device.split(':').next().unwrap());
            run("ls {}", &[device]).fails(&["busy"]);
            run("mkfs -f {}", &[device]).fails(&["busy"]);
            Ok(())
        })
        .unwrap();
    // Readers may live beside each other.
    let read_only = cowshed_harness::LoopDevice::attach_with(image, true, 512).unwrap();
    let other = kernel.dir().join("other");
    fs::create_dir(&other).unwrap();
    let mount = KernelMount::new("btrfs", &[read_only.path()], &other, "ro").unwrap();
    run("mount {} {}", &[image, &dir]).fails(&["busy"]);
    run("mount -r {} {}", &[image, &dir]).ok();
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"x");
    assert_eq!(run("ls {}", &[image]).ok().text(), "f\n");
    unmount(&dir);
    mount.unmount().unwrap();
    run("mount {} {}", &[image, &dir]).ok();
    unmount(&dir);
}

/// As a mount does that was unmounted lazily: it is in no table, and Linux has the device for a
/// moment more.
#[test]
fn claim_that_ends_soon_is_waited_for_and_one_that_stays_is_busy() {
    let Some(()) = need::loop_devices() else { return };
    let volume = Scratch::new();
    let device = cowshed_harness::LoopDevice::attach(&volume.image).unwrap();
    let claim = || {
        use std::os::unix::fs::OpenOptionsExt as _;
        let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
        let claim = fs::OpenOptions::new()
            .read(true)
            .custom_flags(exclusive)
            .open(device.path());
        claim.unwrap()
    };
    let open = || cowshed::Volume::open_image(&volume.image, &cowshed::OpenOptions::new());
    let claimed = claim();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(claimed);
        });
        open().unwrap().close().unwrap();
    });
    let claimed = claim();
    let error = open().expect_err("the device is claimed").to_string();
    assert!(error.contains("busy: it is mounted or open elsewhere"), "{error}");
    drop(claimed);
}

#[test]
fn block_devices_are_mounted_and_belong_to_the_mount() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::loop_devices() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let device = cowshed_harness::LoopDevice::attach(&volume.image).unwrap();
    let _guard = Guard(&dir);
    run("mount {} {}", &[device.path(), &dir]).ok();
    fs::write(dir.join("f"), b"x").unwrap();
    // From 6.18 on Linux passes syncfs on to such a mount.
    if need::syncfs_of_block_devices().is_some() {
        cowshed_harness::run("sync", &["-f".as_ref(), dir.as_os_str()]).unwrap();
        let copy = volume.path("copy");
        fs::copy(&volume.image, &copy).unwrap();
        assert_eq!(run("cat {} f", &[&copy]).ok().out, b"x");
    }
    run("mkfs -f {}", &[device.path()]).fails(&["busy"]);
    unmount(&dir);
    run("check {}", &[device.path()]).ok();
    assert_eq!(run("cat {} f", &[device.path()]).ok().out, b"x");
}

#[test]
fn several_devices_are_one_mount() {
    let Some(()) = can_mount() else { return };
    let scratch = Scratch::new();
    let (a, b, dir) = (scratch.path("a"), scratch.path("b"), scratch.mountpoint());
    let _guard = Guard(&dir);
    run("mkfs -q -d raid1 -m raid1 -b 200m {} {}", &[&a, &b]).ok();
    run("mount {} {} {}", &[&b, &a, &dir]).ok();
    fs::write(dir.join("f"), b"twice").unwrap();
    unmount(&dir);
    run("check --check-data-csum {} {}", &[&a, &b]).ok();
    run("mount {} {}", &[&a, &dir]).fails(&["missing"]);
    run("mount -o degraded,ro {} {}", &[&a, &dir]).ok();
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"twice");
    unmount(&dir);
}

#[test]
fn a_full_volume_says_so_and_can_be_emptied_through_the_mount() {
    let Some(()) = can_mount() else { return };
    let scratch = Scratch::new();
    let (small, dir) = (scratch.path("small"), scratch.mountpoint());
    let _guard = Guard(&dir);
    run("mkfs -q -b 120m {}", &[&small]).ok();
    run("mount {} {}", &[&small, &dir]).ok();
    for _ in 0..3 {
        let error = fs::write(dir.join("fill"), vec![1; 120 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        fs::remove_file(dir.join("fill")).unwrap();
        cowshed_harness::run("sync", &["-f".as_ref(), dir.as_os_str()]).unwrap();
    }
    unmount(&dir);
    run("check --check-data-csum {}", &[&small]).ok();
    assert_eq!(run("ls {}", &[&small]).ok().text(), "");
}

#[test]
fn bad_arguments_are_refused_before_anything_happens() {
    let Some(()) = can_mount() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount -o wobble {} {}", &[&volume.image, &dir]).fails(&["wobble"]);
    run("mount -o compress=gzip {} {}", &[&volume.image, &dir]).fails(&["gzip", "zstd"]);
    run("mount {} {}", &[&volume.image, &volume.path("none")]).fails(&["mount point", "none"]);
    run("mount {} {}", &[&volume.image, &volume.image]).fails(&["not a directory"]);
    run("mount {} {}", &[&volume.path("none"), &dir]).fails(&["none", "No such file"]);
    let zeros = volume.path("zeros");
    fs::write(&zeros, vec![0; 1 << 20]).unwrap();
    run("mount {} {}", &[&zeros, &dir]).fails(&["superblock"]);
    run("umount {}", &[&dir]).fails(&["not mounted"]);
    run("umount {}", &[Path::new("/proc")]).fails(&["umount(8)"]);
    assert!(!is_mounted(&dir));
}

/// In a name space of its own, in which users may open /dev/fuse, whatever the machine's rule is.
#[test]
fn an_ordinary_user_makes_mounts_and_unmounts_through_fusermount3() {
    let Some(()) = can_mount() else { return };
    for program in ["fusermount3", "setpriv", "unshare", "fstrim"] {
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
        chown 65534:65534 "$1/home"
        cd "$1/home"
        exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -euc '
            test "$(id -u)" = 65534
            ../cowshed mkfs -q -b 200m image
            mkdir mnt
            ../cowshed mount image mnt
            mkdir mnt/d
            echo hello > mnt/d/f
            head -c 20000000 /dev/urandom > mnt/d/gone
            ../cowshed sync mnt
            rm mnt/d/gone
            test "$(stat -c %b image)" -gt 39000
            fstrim mnt
            test "$(stat -c %b image)" -lt 8000
            ../cowshed umount mnt
            ../cowshed check --check-data-csum image
            ../cowshed cat image d/f
            ../cowshed stat image d/f
        '
    "#;
    let dir = tempfile::tempdir().unwrap();
    let mut unshare = in_name_space();
    unshare
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(dir.path())
        .arg(COWSHED);
    let ran = limit::output(&mut unshare).unwrap_or_else(|e| panic!("{e:#}"));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(
        said.contains("no error found") && said.contains("\nhello\n") && said.contains("Uid: (65534/"),
        "{said}"
    );
}
