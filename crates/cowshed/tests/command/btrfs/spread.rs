//! How the space of volumes of several devices, of several profiles and of mixed block groups is
//! shown, beside the stock command, on mounts of the kernel's.

use cowshed_harness::{KernelVolume, VolumeOptions, limit, need, shell};

use super::{can_compare, fresh, kernel_mount, ours, stock, text, with_own_mount};
use crate::mount::{Guard, unmount};
use crate::support::{COMMAND_MAX, COWSHED, in_name_space, run};

const LINES: [&str; 10] = [
    "filesystem df @/",
    "--format json filesystem df @/",
    "filesystem usage @/",
    "filesystem usage -b @/",
    "filesystem usage -T @/",
    "device usage @/",
    "device usage -b @/ @/",
    "filesystem show @/",
    "device stats @/",
    "device stats -T @/",
];

/// Asks all lines on a mount of the kernel's. Returns all answers, with the warnings.
#[track_caller]
fn same_on_kernel_mount(volume: &KernelVolume, options: &str, script: &str) -> String {
    let mounted = volume.mount_with(options).unwrap();
    let dir = mounted.dir().canonicalize().unwrap();
    shell(&dir, script).unwrap();
    let root = text(&dir);
    let mut all = String::new();
    for line in LINES {
        let (own, stock) = (ours(&root).run(line), stock(&root).run(line));
        // Devices of tests that run at the same time come and go.
        let is_of_profiles = |line: &&str| line.contains("block group profiles") || line.starts_with("WARNING:    ");
        let of_profiles = stock.err.lines().filter(is_of_profiles);
        let warnings: String = of_profiles.map(|line| format!("{line}\n")).collect();
        assert_eq!(own.out, stock.out, "{line}");
        assert_eq!((own.code, &own.err), (0, &warnings), "{line}");
        all += &stock.out;
        all += &warnings;
    }
    // That a device is missing the kernel says in its log.
    match options.contains("degraded") {
        true => mounted.unmount().unwrap(),
        false => mounted.unmount_quietly().unwrap(),
    }
    all
}

fn small(devices: usize, data: &'static str, metadata: &'static str) -> VolumeOptions {
    VolumeOptions {
        size_bytes: 400 << 20,
        ..VolumeOptions::devices(devices, data, metadata)
    }
}

#[test]
fn stripes_are_counted_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = KernelVolume::make(&small(4, "raid0", "raid10")).unwrap();
    // A chunk of three stripes, then one of four.
    let script = r"
        last=$(btrfs filesystem show --raw . | sed -n 's/.*devid    4 .*path //p'); btrfs device remove $last .
        head -c 200M /dev/zero >a; sync -f .; btrfs device add -f $last .; head -c 400M /dev/zero >b; sync -f .";
    let all = same_on_kernel_mount(&volume, "", script);
    for shown in ["Data,RAID0/3:", "Data,RAID0/4:", "Metadata,RAID10/"] {
        assert!(all.contains(shown), "{shown}: {all}");
    }
}

#[test]
fn several_profiles_are_warned_of_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = KernelVolume::make(&small(2, "single", "raid1")).unwrap();
    let script = "head -c 200M /dev/zero >a; sync -f .; btrfs balance start -dconvert=raid1,devid=1,soft,limit=1 .";
    let all = same_on_kernel_mount(&volume, "", script);
    assert!(all.contains("WARNING:    Data: single, raid1\n"), "{all}");
    // On mounts of our own, too.
    with_own_mounts(&volume, |root| {
        let answer = ours(root).run("device usage @/");
        assert!(answer.err.contains("WARNING:    Data: single, raid1\n"), "{answer:?}");
    });
}

#[test]
fn mixed_block_groups_are_shown_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let options = VolumeOptions {
        mixed: true,
        ..small(2, "single", "single")
    };
    let volume = KernelVolume::make(&options).unwrap();
    let all = same_on_kernel_mount(&volume, "", "head -c 150M /dev/zero >a; sync -f .");
    assert!(all.contains("Data+Metadata,single: Size:"), "{all}");
    let how = "convert=raid1,devid=1,soft";
    let all = same_on_kernel_mount(&volume, "", &format!("btrfs balance start -f -d{how} -m{how} ."));
    for shown in ["yes\t(data+metadata)", "WARNING:    Data+Metadata: single, raid1\n"] {
        assert!(all.contains(shown), "{shown}: {all}");
    }
}

#[test]
fn missing_devices_are_shown_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let whole = KernelVolume::make(&small(2, "raid1", "raid1")).unwrap();
    // The kernel has never seen the other device.
    let volume = KernelVolume::copy_of(&whole.images()[..1]).unwrap();
    let all = same_on_kernel_mount(&volume, "degraded,ro", "true");
    for shown in [
        "\tdevid    2 size 0 used 0 path  MISSING\n",
        "missing, ID: 2\n   Device size:               0.00B\n",
        "[devid:2].write_io_errs    0\n",
        "Device missing:\t\t 400.00MiB\n",
    ] {
        assert!(all.contains(shown), "{shown}: {all}");
    }
    with_own_mount(&volume, "degraded,ro", |root| {
        let ours = ours(root);
        assert!(
            ours.ok("filesystem show @/")
                .contains("devid    2 size 0 used 0 path  MISSING\n")
        );
        assert!(ours.ok("device stats @/").contains("[devid:2].write_io_errs    0\n"));
        assert!(
            ours.ok("device usage @/")
                .contains("missing, ID: 2\n   Device size:               0.00B\n")
        );
    });
}

/// With the volume of several images mounted by us.
fn with_own_mounts(volume: &KernelVolume, act: impl FnOnce(&str)) {
    let mnt = volume.dir().join("own");
    std::fs::create_dir_all(&mnt).unwrap();
    let guard = Guard(&mnt);
    let [first, second] = volume.images() else {
        panic!("the volume has two images");
    };
    run("mount {} {} {}", &[first, second, &mnt]).ok();
    act(&text(&mnt.canonicalize().unwrap()));
    unmount(&mnt);
    drop(guard);
}

/// Mounts below a directory are not counted, whatever is mounted there.
#[test]
fn du_leaves_out_what_is_mounted_below() {
    let Some(()) = can_compare() else { return };
    let Some(()) = need::tool("unshare") else { return };
    let volume = fresh();
    let script = "
        btrfs -q subvolume create s; mkdir d other none same part; head -c 1M /dev/urandom >s/f
        cp s/f d/g; sync -f .";
    volume.with_mount(|root| shell(root, script)).unwrap();
    let (mounted, root) = kernel_mount(&volume);
    let other = fresh();
    other.with_mount(|root| shell(root, "echo x >in; sync -f .")).unwrap();
    let (mounted_other, other_root) = kernel_mount(&other);
    let errors = volume.dir().join("errors");
    let du = |program: &str, what: &str| {
        // Mounts of a name space of its own.
        let errors_path = errors.display();
        let script = format!(
            "cd {root}; mount --bind {other_root} other; mount -t tmpfs none none; echo x >none/y
             mount --bind s same; mount --bind d part; exec -a btrfs {program} filesystem du {what} 2>{errors_path}"
        );
        let mut command = in_name_space();
        command.args(["--mount", "bash", "-ec", &script]);
        let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
        let errors = std::fs::read_to_string(&errors).unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), errors)
    };
    let stock_program = "$(command -v btrfs)";
    for what in [".", "-s . s", "other", "part", "same"] {
        let expected = du(stock_program, what);
        assert_eq!(du(COWSHED, what), expected, "{what}");
        if what == "." {
            let (out, errors) = expected;
            assert!(errors.contains("cannot access 'none'"), "{errors}");
            assert!(!out.contains("same/f") && !out.contains("other/in"), "{out}");
        }
    }
    mounted_other.unmount_quietly().unwrap();
    mounted.unmount_quietly().unwrap();
}
