//! Volumes of several block devices: what the kernel's driver is told of them, and commands that
//! are given one of the devices.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use cowshed_harness::{KernelMount, LoopDevice, limit, run as run_program};

use super::{can_compare, ours, stock, text};
use crate::mount::{Guard, unmount};
use crate::support::{COMMAND_MAX, COWSHED, run};

/// Three loop devices on files in a directory.
fn devices(dir: &Path) -> [LoopDevice; 3] {
    ["a", "b", "c"].map(|name| {
        let image = dir.join(name);
        fs::File::create(&image).unwrap().set_len(300 << 20).unwrap();
        LoopDevice::attach(&image).unwrap()
    })
}

/// By our program, as mkfs.btrfs.
fn mkfs(words: &[&str], devices: &[LoopDevice]) {
    let mut command = Command::new(COWSHED);
    command.arg0("mkfs.btrfs").args(["-q", "-f"]).args(words);
    command.args(devices.iter().map(LoopDevice::path));
    let made = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// By the kernel, by this device.
fn by_kernel(device: &Path, dir: &Path) -> KernelMount {
    let at = dir.join("kernel");
    fs::create_dir_all(&at).unwrap();
    KernelMount::new("btrfs", &[device], &at, "noatime").unwrap()
}

#[test]
fn kernel_mounts_what_mkfs_made_by_one_of_its_devices() {
    let Some(()) = can_compare() else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let devices = devices(dir.path());
    mkfs(&["-d", "raid1", "-m", "raid1"], &devices);
    let first = text(devices[0].path());
    assert_eq!(ours(&first).run("device ready @").code, 0);
    let mounted = by_kernel(devices[1].path(), dir.path());
    fs::write(mounted.dir().join("file"), "by the kernel").unwrap();
    drop(mounted);
    // Forgotten, the volume is not ready, until the devices are scanned again.
    for device in &devices {
        assert_eq!(ours(&text(device.path())).run("device scan -u @").code, 0);
    }
    assert_eq!(stock(&first).run("device ready @").code, 1);
    assert_eq!(ours(&first).run("device ready @").code, 1);
    for device in &devices[1..] {
        let device = text(device.path());
        let said = ours(&device).ok("device scan @");
        assert_eq!(said, stock(&device).ok("device scan @"));
    }
    assert_eq!(ours(&first).run("device ready @").code, 0);
    // Devices of other tests come and go: one may fail.
    let said = ours("/none").run("device scan").out;
    assert!(
        said.starts_with("Scanning for Btrfs filesystems\nregistered: /dev/"),
        "{said}"
    );
    let lines = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let known = lines(said);
    for device in &devices {
        let line = format!("registered: {}", device.path().display());
        assert!(known.contains(&line), "{line} in {known:?}");
    }
    for line in ["device scan @", "device ready @", "device scan -u @", "device ready"] {
        let file = text(&dir.path().join("a"));
        let (own, other) = (ours(&file).run(line), stock(&file).run(line));
        assert_eq!(own.code, other.code, "{line}");
        if line != "device ready" {
            assert_eq!(own.err, other.err, "{line}");
        }
    }
}

#[test]
fn commands_find_the_other_devices_of_a_volume() {
    let Some(()) = can_compare() else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let devices = devices(dir.path());
    mkfs(&["-d", "raid0", "-m", "raid1c3"], &devices);
    let mounted = by_kernel(devices[0].path(), dir.path());
    fs::write(mounted.dir().join("file"), vec![7; 1 << 20]).unwrap();
    run_program(
        "btrfs",
        &[
            "subvolume",
            "snapshot",
            "-r",
            &text(mounted.dir()),
            &text(&mounted.dir().join("snap")),
        ],
    )
    .unwrap();
    drop(mounted);
    let second = devices[1].path();
    run("check --check-data-csum {}", &[second]).ok();
    let name = text(second);
    assert_eq!(ours(&name).run("check @").code, 0);
    let shown = |text: String| text.trim_end().to_owned();
    assert_eq!(
        shown(ours(&name).ok("filesystem show @")),
        shown(stock(&name).ok("filesystem show @"))
    );
    assert!(
        ours(&name)
            .ok("inspect-internal dump-tree -t chunk @")
            .contains("DEV_ITEM 3")
    );
    assert_eq!(run("cat {} /file", &[second]).ok().out, vec![7; 1 << 20]);
    let out = dir.path().join("out");
    run("extract {} {}", &[second, &out]).ok();
    assert_eq!(fs::read(out.join("file")).unwrap(), vec![7; 1 << 20]);
    let named = dir.path().join("named");
    let options = [&devices[0], &devices[2]]
        .map(|device| format!("device={}", device.path().display()))
        .join(",");
    run(&format!("extract -o {options} {{}} {{}}"), &[second, &named]).ok();
    // With a copy of a device it is not known what belongs together.
    fs::copy(dir.path().join("c"), dir.path().join("copy")).unwrap();
    let copy = LoopDevice::attach(dir.path().join("copy")).unwrap();
    let doubtful = run("check {}", &[second]).code(1);
    assert!(doubtful.text().contains("device-missing"), "{}", doubtful.text());
    drop(copy);
    run("check {}", &[second]).ok();
    let inside = format!("{}:/snap", second.display());
    assert!(!run("send {}", &[inside.as_ref()]).ok().out.is_empty());
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    run("mount {} {}", &[second, &mnt]).ok();
    let guard = Guard(&mnt);
    fs::write(mnt.join("new"), "by us").unwrap();
    unmount(&mnt);
    drop(guard);
    run("check --check-data-csum {}", &[second]).ok();
    let mounted = by_kernel(devices[2].path(), dir.path());
    assert_eq!(fs::read_to_string(mounted.dir().join("new")).unwrap(), "by us");
    drop(mounted);
    // Of a file it is not known where the others are.
    run("check {}", &[&dir.path().join("a")]).code(1);
}
