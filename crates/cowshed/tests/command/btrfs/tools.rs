//! The commands that known tools call, in their order, on a mount of ours with our program as
//! `btrfs`: what the tools read from the output is read here, too. Where the stock command knows
//! the same line, its output is compared elsewhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cowshed_harness::{KernelVolume, limit, need};

use super::{At, can_compare, fresh, ours, with_own_mount};
use crate::support::{COMMAND_MAX, COWSHED};

/// Runs shell commands in which `btrfs` is our program. `$M` is the root of the mount, `$T` that of
/// another.
#[track_caller]
fn sh(at: &At<'_>, other: &str, script: &str) -> String {
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(COWSHED, bin.path().join("btrfs")).unwrap();
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-e", "-o", "pipefail", "-c", script]);
    command
        .env("PATH", path)
        .env("M", at.root)
        .env("T", other)
        .env("LC_ALL", "C");
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{script}\nout: {out}\nerr: {err}");
    out.into_owned()
}

/// The value of a line of `subvolume show`.
#[track_caller]
fn value<'a>(shown: &'a str, name: &str) -> &'a str {
    let line = shown.lines().find_map(|line| line.trim().strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {shown}")).trim()
}

/// Two volumes of the kernel's, mounted by us.
fn on_two(act: impl FnOnce(&At<'_>, &str)) -> (KernelVolume, KernelVolume) {
    let (source, target) = (fresh(), fresh());
    with_own_mount(&source, "noatime,subvolid=5", |root| {
        with_own_mount(&target, "noatime,subvolid=5", |other| act(&ours(root), other));
    });
    source.assert_clean();
    target.assert_clean();
    (source, target)
}

/// btrbk: snapshots of a subvolume, sent as a chain to another volume, old ones deleted.
#[test]
fn btrbk_makes_snapshots_and_backups() {
    let Some(()) = can_compare() else { return };
    on_two(|at, other| {
        sh(
            at,
            other,
            "btrfs subvolume create $M/home; mkdir $M/snaps $T/backup; echo 1 >$M/home/file",
        );
        let mut parent = String::new();
        for day in 1..=3 {
            let shown = sh(at, other, "btrfs subvolume show $M/home");
            assert_eq!(value(&shown, "Name:"), "home");
            let uuid = value(&shown, "UUID:").to_owned();
            assert_eq!(value(&shown, "Flags:"), "-");
            let listed = sh(at, other, "btrfs subvolume list -a -c -u -q -R $M");
            assert!(listed.contains(&uuid), "{listed}");
            let read_only = sh(at, other, "btrfs subvolume list -a -r $M").lines().count();
            assert_eq!(read_only, day - 1);
            sh(
                at,
                other,
                &format!("echo {day} >>$M/home/file; btrfs subvolume snapshot -r $M/home $M/snaps/home.{day}"),
            );
            let snapshot = sh(at, other, &format!("btrfs subvolume show $M/snaps/home.{day}"));
            assert_eq!(value(&snapshot, "Parent UUID:"), uuid);
            assert_eq!(value(&snapshot, "Flags:"), "readonly");
            sh(
                at,
                other,
                &format!("btrfs send {parent} $M/snaps/home.{day} 2>/dev/null | btrfs receive $T/backup/"),
            );
            let received = sh(at, other, &format!("btrfs subvolume show $T/backup/home.{day}"));
            assert_eq!(value(&received, "Received UUID:"), value(&snapshot, "UUID:"));
            assert_eq!(value(&received, "Flags:"), "readonly");
            parent = format!("-p $M/snaps/home.{day} -c $M/snaps/home.{day}");
            let usage = sh(at, other, "btrfs filesystem usage $T");
            assert!(value(&usage, "Free (estimated):").contains("(min: "), "{usage}");
            assert!(
                usage.contains("Data ratio:") && usage.contains("Device size:"),
                "{usage}"
            );
        }
        let generation = sh(at, other, "btrfs subvolume find-new $M/snaps/home.1 99999999");
        let generation = generation.trim().strip_prefix("transid marker was ").unwrap();
        let new = sh(
            at,
            other,
            &format!("btrfs subvolume find-new $M/snaps/home.3 {generation}"),
        );
        assert!(
            new.contains(" file") && new.contains("inode 257 file offset 0"),
            "{new}"
        );
        let deleted = sh(
            at,
            other,
            "btrfs subvolume delete --commit-each $M/snaps/home.1; btrfs subvolume delete --commit-after $T/backup/home.1",
        );
        assert_eq!(
            deleted.lines().filter(|line| line.contains("(commit)")).count(),
            2,
            "{deleted}"
        );
        sh(
            at,
            other,
            "btrfs subvolume sync $M; btrfs subvolume sync $T; cmp $M/home/file $T/backup/home.3/file",
        );
        assert_eq!(sh(at, other, "btrfs subvolume list -a -r $T").lines().count(), 2);
    });
}

/// btrbk itself. It takes what `cat /proc/self/mountinfo` says for the type of a file system, which
/// is not btrfs on any FUSE mount, so it is given a `cat` that says so.
#[test]
fn btrbk_itself_runs_on_mounts() {
    let Some(()) = can_compare() else { return };
    let Some(()) = need::tool("btrbk") else { return };
    on_two(|at, other| {
        let run = "
            bin=$(mktemp -d); conf=$bin/btrbk.conf
            cat >$bin/cat <<'END'
#!/bin/sh
case $* in
*/mountinfo) exec sed -E 's/ - fuse(blk)?\\.cowshed ([^ ]+) / - btrfs \\2 subvolid=5,subvol=\\/,/' \"$@\" ;;
*) exec /bin/cat \"$@\" ;;
esac
END
            chmod +x $bin/cat
            export PATH=$bin:$PATH
            printf '%s\\n' 'timestamp_format long-iso' 'snapshot_preserve_min latest' 'snapshot_preserve no' \\
                'target_preserve_min 2d' \"volume $M\" ' snapshot_dir snaps' ' subvolume home' \"  target $T/backup\" >$conf
            btrbk -c $conf -q run
            btrbk -c $conf -q list all
            rm -r $bin";
        sh(
            at,
            other,
            "btrfs subvolume create $M/home; mkdir $M/snaps $T/backup; cp -a /etc/passwd $M/home/",
        );
        for day in 1..=3 {
            // Names of snapshots are by the second.
            std::thread::sleep(Duration::from_millis(1100));
            sh(
                at,
                other,
                &format!("echo {day} >>$M/home/file; mkdir $M/home/dir-{day}"),
            );
            let listed = sh(at, other, run);
            assert_eq!(listed.matches("/backup/home.").count(), day, "{listed}");
            sh(
                at,
                other,
                "diff -r $M/home $M/snaps/home.*; diff -r $M/home $(ls -d $T/backup/home.* | tail -1)",
            );
        }
        // One snapshot is left, and all backups, each from the one before.
        assert_eq!(sh(at, other, "ls $M/snaps").lines().count(), 1);
        assert_eq!(sh(at, other, "ls $T/backup").lines().count(), 3);
        let listed = sh(at, other, "btrfs subvolume list -q $T");
        assert_eq!(listed.matches("parent_uuid -").count(), 1, "{listed}");
    });
}

/// snapper: a subvolume for snapshots, a snapshot before and after a change, the difference between
/// them, and a rollback to the first by the default subvolume.
#[test]
fn snapper_compares_and_rolls_back() {
    let Some(()) = can_compare() else { return };
    let (volume, _) = on_two(|at, other| {
        sh(
            at,
            other,
            "btrfs subvolume create $M/root; btrfs subvolume set-default $M/root; btrfs subvolume create $M/root/.snapshots
             mkdir $M/root/.snapshots/1 $M/root/.snapshots/2; echo old >$M/root/conf; echo gone >$M/root/gone
             btrfs subvolume snapshot -r $M/root $M/root/.snapshots/1/snapshot
             echo new >$M/root/conf; rm $M/root/gone; echo more >$M/root/more
             btrfs subvolume snapshot -r $M/root $M/root/.snapshots/2/snapshot",
        );
        let changes = sh(
            at,
            other,
            "cd $M/root/.snapshots; btrfs send --no-data -p 1/snapshot 2/snapshot 2>/dev/null | btrfs receive --dump",
        );
        for change in ["snapshot/conf", "unlink          ./snapshot/gone", "snapshot/more"] {
            assert!(changes.contains(change), "no {change} in {changes}");
        }
        // Rollback: a read-only snapshot of what is there, a writable one of the first as default.
        sh(
            at,
            other,
            "mkdir $M/root/.snapshots/3 $M/root/.snapshots/4
             btrfs subvolume snapshot -r $M/root $M/root/.snapshots/3/snapshot
             btrfs subvolume snapshot $M/root/.snapshots/1/snapshot $M/root/.snapshots/4/snapshot
             btrfs subvolume set-default $M/root/.snapshots/4/snapshot",
        );
        let default = sh(at, other, "btrfs subvolume get-default $M");
        assert!(default.ends_with(" path root/.snapshots/4/snapshot\n"), "{default}");
        // The default stays, others go.
        let kept = at.run("subvolume delete @/root/.snapshots/4/snapshot");
        assert!(kept.code == 1 && kept.err.contains("default subvolume"), "{kept:?}");
        sh(
            at,
            other,
            "btrfs subvolume delete $M/root/.snapshots/2/snapshot; rmdir $M/root/.snapshots/2",
        );
    });
    let mounted = volume.mount_with("noatime").unwrap();
    let conf = fs::read_to_string(mounted.dir().join("conf")).unwrap();
    assert!(
        conf == "old\n" && mounted.dir().join("gone").exists(),
        "the kernel mounts the first state"
    );
    mounted.unmount_quietly().unwrap();
}

/// timeshift: `@` and `@home`, snapshots of both in a directory of their own. What a restore
/// replaces is moved away. It asks for quota groups, and goes on without them.
#[test]
fn timeshift_makes_snapshots_and_restores_them() {
    let Some(()) = can_compare() else { return };
    on_two(|at, other| {
        sh(
            at,
            other,
            "btrfs subvolume create $M/@; btrfs subvolume create $M/@home; echo first >$M/@/state
             mkdir -p $M/timeshift-btrfs/snapshots/one",
        );
        let refused = sh(
            at,
            other,
            "btrfs quota enable $M 2>&1 || echo code $?; btrfs qgroup show --raw $M 2>&1 || echo code $?",
        );
        assert_eq!(
            refused.matches("is not implemented yet\ncode 1\n").count(),
            2,
            "{refused}"
        );
        sh(
            at,
            other,
            "S=$M/timeshift-btrfs/snapshots/one; btrfs subvolume snapshot \"$M/@\" \"$S/@\"
             btrfs subvolume snapshot \"$M/@home\" \"$S/@home\"; echo second >$M/@/state",
        );
        // Numbers and paths, as it reads them: the second word, and what follows `path`.
        let listed = sh(at, other, "btrfs subvolume list \"$M\"");
        let paths: Vec<_> = listed.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
        assert_eq!(
            paths,
            [
                "@",
                "@home",
                "timeshift-btrfs/snapshots/one/@",
                "timeshift-btrfs/snapshots/one/@home"
            ]
        );
        let shown = sh(at, other, "btrfs subvolume show $M/timeshift-btrfs/snapshots/one/@");
        let id = listed.lines().nth(2).and_then(|line| line.split(' ').nth(1));
        assert_eq!(Some(value(&shown, "Subvolume ID:")), id);
        sh(
            at,
            other,
            "S=$M/timeshift-btrfs/snapshots; mkdir $S/before
             for name in @ @home; do
                 mv \"$M/$name\" \"$S/before/$name\"
                 btrfs subvolume snapshot \"$S/one/$name\" \"$M/$name\"
             done
             test \"$(cat $M/@/state)\" = first; test \"$(cat $S/before/@/state)\" = second
             for name in @ @home; do btrfs subvolume delete \"$S/before/$name\"; done; rmdir $S/before
             btrfs filesystem sync $M; btrfs subvolume sync $M",
        );
        assert_eq!(sh(at, other, "btrfs subvolume list $M").lines().count(), 4);
    });
}

/// The btrfs driver of container engines: a subvolume for each layer, each a snapshot of the one
/// below, with modes of their own; a layer is deleted with what containers nested in it.
#[test]
fn layers_of_containers_are_made_and_removed() {
    let Some(()) = can_compare() else { return };
    on_two(|at, other| {
        sh(
            at,
            other,
            "mkdir -p -m 700 $M/subvolumes; cd $M/subvolumes
             btrfs subvolume create base; chmod 555 base; mkdir base/bin; echo sh >base/bin/sh
             for n in 1 2 3; do btrfs subvolume snapshot base layer$n; echo $n >layer$n/bin/own; done
             btrfs subvolume snapshot layer3 container; btrfs subvolume create container/nested; echo x >container/nested/file",
        );
        let layer = Path::new(at.root).join("subvolumes/layer2");
        assert_eq!(fs::metadata(&layer).unwrap().permissions().mode() & 0o7777, 0o555);
        assert_eq!(fs::read_to_string(layer.join("bin/own")).unwrap(), "2\n");
        let id = at.ok("inspect-internal rootid @/subvolumes/container/nested/file");
        let path = at.ok(&format!("inspect-internal subvolid-resolve {} @/", id.trim()));
        assert_eq!(path, "subvolumes/container/nested\n");
        // Not empty: others are nested in it.
        let refused = at.run("subvolume delete @/subvolumes/container");
        assert!(
            refused.code == 1 && refused.err.contains("Directory not empty"),
            "{refused:?}"
        );
        sh(
            at,
            other,
            "cd $M/subvolumes; btrfs subvolume delete container/nested; btrfs subvolume delete container
             btrfs subvolume delete layer1 layer2 layer3; chmod 755 base; rm -r base/bin; rmdir base; btrfs subvolume sync $M",
        );
        assert_eq!(fs::read_dir(Path::new(at.root).join("subvolumes")).unwrap().count(), 0);
        assert_eq!(at.ok("subvolume list @/"), "");
    });
}
