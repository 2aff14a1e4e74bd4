//! `btrfs send` and `btrfs receive` under the stock name: between a mount of the kernel's, a mount
//! of ours and an image, each in both directions.

use std::fs;
use std::path::Path;
use std::process::Command;

use cowshed_harness::{KernelVolume, limit, shell};

use super::{At, Program, can_compare, fresh, kernel_mount, ours, stock, text, with_own_mount};
use crate::support::{COMMAND_MAX, COWSHED};

/// A chain of three snapshots.
fn fill(volume: &KernelVolume) {
    let script = r"
        btrfs -q subvolume create work; mkdir work/d; echo one >work/d/one; ln work/d/one work/link
        dd if=/dev/urandom of=work/big bs=64k count=8; btrfs -q subvolume snapshot -r work s1
        echo two >work/d/two; mv work/d/one work/moved; cp --reflink=always work/big work/clone
        btrfs -q subvolume snapshot -r work s2
        rm work/link; setfattr -n user.x -v y work/moved; dd if=/dev/urandom of=work/big bs=4k count=1 conv=notrunc
        btrfs -q subvolume snapshot -r work s3; sync -f .";
    volume.with_mount(|root| shell(root, script)).unwrap();
}

/// Sends by one program and receives by another; both are called by the stock name.
fn pass(from: &At<'_>, send: &str, to: &At<'_>, receive: &str) {
    let program = |program| match program {
        Program::Stock => "btrfs",
        Program::Ours => COWSHED,
    };
    let words = |at: &At<'_>, line: &str| line.replace('@', at.root);
    let script = format!(
        "set -o pipefail; (exec -a btrfs {} {}) | (exec -a btrfs {} {})",
        program(from.program),
        words(from, send),
        program(to.program),
        words(to, receive)
    );
    let output = limit::output_within(Command::new("bash").args(["-c", &script]), COMMAND_MAX).unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Names, kinds, sizes, contents and attributes of a tree.
fn tree(dir: &Path) -> String {
    let script = "find . -mindepth 1 -printf '%P %y %m %n %s %T@\\n' | sort; \
                  find . -type f | sort | xargs sha256sum; getfattr -Rd .";
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(dir);
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All three of the chain, as they arrived, are those that were sent.
fn arrived(source: &KernelVolume, target: &KernelVolume, what: &str) {
    let trees = |volume: &KernelVolume| {
        let of = |root: &Path| Ok(["s1", "s2", "s3"].map(|name| tree(&root.join(name))));
        volume.with_mount(of).unwrap()
    };
    assert_eq!(trees(target), trees(source), "{what}");
    target.assert_clean();
}

/// The chain, by full and incremental streams of all forms.
fn chain(from: &At<'_>, to: &At<'_>) {
    pass(from, "send -q @/s1", to, "receive -q @/");
    pass(from, "-q send -p @/s1 @/s2", to, "-q receive @/");
    pass(from, "send -q --proto 2 -c @/s1 -c @/s2 @/s3", to, "receive -q -e @/");
}

#[test]
fn chains_pass_between_mounts_of_the_kernel_ours_and_images() {
    let Some(()) = can_compare() else { return };
    let source = fresh();
    fill(&source);
    let image = format!("{}:", text(source.image()));

    // By our program alone, from the kernel's mount to the kernel's mount.
    let target = fresh();
    let (from, from_root) = kernel_mount(&source);
    let (to, to_root) = kernel_mount(&target);
    chain(&ours(&from_root), &ours(&to_root));
    to.unmount_quietly().unwrap();
    arrived_from_mounted(&from_root, &target, "from mount to mount of the kernel's");

    // The stock program takes what ours has the kernel send, and the other way round.
    for (sender, receiver) in [(Program::Ours, Program::Stock), (Program::Stock, Program::Ours)] {
        let target = fresh();
        let (to, to_root) = kernel_mount(&target);
        let (program, root) = (sender, &*from_root);
        let from = At { program, root };
        let (program, root) = (receiver, &*to_root);
        chain(&from, &At { program, root });
        to.unmount_quietly().unwrap();
        arrived_from_mounted(&from_root, &target, &format!("{sender:?} to {receiver:?}"));
    }

    // Onto a mount of ours, and into an image.
    let target = fresh();
    with_own_mount(&target, "noatime", |root| chain(&ours(&from_root), &ours(root)));
    arrived_from_mounted(&from_root, &target, "from the kernel's mount to ours");
    let target = fresh();
    let into = format!("{}:", text(target.image()));
    chain(&stock(&from_root), &ours(&into));
    arrived_from_mounted(&from_root, &target, "from the kernel's mount into an image");
    from.unmount_quietly().unwrap();

    // From a mount of ours, and from an image, to the kernel.
    let target = fresh();
    let (to, to_root) = kernel_mount(&target);
    with_own_mount(&source, "noatime", |root| chain(&ours(root), &stock(&to_root)));
    to.unmount_quietly().unwrap();
    arrived(&source, &target, "from our mount to the kernel's");
    let target = fresh();
    let (to, to_root) = kernel_mount(&target);
    chain(&ours(&image), &ours(&to_root));
    to.unmount_quietly().unwrap();
    arrived(&source, &target, "from an image to the kernel's mount");
}

fn arrived_from_mounted(source: &str, target: &KernelVolume, what: &str) {
    let sent = ["s1", "s2", "s3"].map(|name| tree(&Path::new(source).join(name)));
    let of = |root: &Path| Ok(["s1", "s2", "s3"].map(|name| tree(&root.join(name))));
    assert_eq!(target.with_mount(of).unwrap(), sent, "{what}");
    target.assert_clean();
}

#[test]
fn what_cannot_be_sent_from_the_kernels_mount_is_refused() {
    let Some(()) = can_compare() else { return };
    let source = fresh();
    fill(&source);
    let (mounted, root) = kernel_mount(&source);
    for (line, words) in [
        ("send -f /dev/null @/work", "is not read-only"),
        ("send -f /dev/null @/none", "No such file"),
        ("send -f /dev/null @/work/d", "ubvolume"),
        ("send -f /dev/null -p @/work @/s1", "is not read-only"),
    ] {
        let refused = ours(&root).run(line);
        assert!(refused.code == 1 && refused.err.contains(words), "{line}: {refused:?}");
        assert_eq!(stock(&root).run(line).code, 1, "{line}");
    }
    mounted.unmount_quietly().unwrap();
}

/// The streams of the stock program, to files and to devices; the kernel does not write to devices.
#[test]
fn streams_go_to_files_and_devices_and_are_of_version_2_where_data_is_compressed() {
    let Some(()) = can_compare() else { return };
    let source = fresh();
    fill(&source);
    let image = format!("{}:", text(source.image()));
    let stream = source.dir().join("stream");
    let version_of = |root: &str| {
        ours(root).ok(&format!("send -q --compressed-data -f {} @/s2", stream.display()));
        let bytes = fs::read(&stream).unwrap();
        assert!(bytes.starts_with(b"btrfs-stream\0"));
        (bytes[13..17].to_vec(), bytes.len())
    };
    let (own_version, _) = version_of(&image);
    let (mounted, root) = kernel_mount(&source);
    let (version, len) = version_of(&root);
    assert_eq!((&own_version[..], &version[..]), (&[2, 0, 0, 0][..], &[2, 0, 0, 0][..]));
    stock(&root).ok(&format!("send -q --compressed-data -f {} @/s2", stream.display()));
    assert_eq!(fs::metadata(&stream).unwrap().len(), len as u64);
    for program in [ours(&root), stock(&root)] {
        program.ok("send -q -f /dev/null @/s1");
        for refused in ["-f /dev/full", "--proto 1 --compressed-data -f /dev/null"] {
            let refused = program.run(&format!("send -q {refused} @/s1"));
            assert_ne!(refused.code, 0, "{refused:?}");
        }
    }
    mounted.unmount_quietly().unwrap();
}
