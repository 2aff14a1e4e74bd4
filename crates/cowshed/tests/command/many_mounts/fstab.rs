//! /etc/fstab, mount(8) and umount(8) with the mount helper, in a mount name space of its own.

use std::fs;

use cowshed_harness::{limit, need};

use super::{Volume, wait_until_free};
use crate::mount::can_mount;
use crate::support::{COWSHED, in_name_space};

/// The helper is in /sbin for the processes of the name space alone: an overlay of links.
const SETUP: &str = r#"
    set -eu
    image=$1 cowshed=$2 work=$3
    mkdir "$work/sbin" "$work/root" "$work/home" "$work/all"
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$work/sbin"
    cp -a /sbin/. "$work/sbin/"
    for name in mount.cowshed mount.fuse.cowshed; do ln -sf "$cowshed" "$work/sbin/$name"; done
    mount --bind "$work/sbin" "$(realpath /sbin)"
    trap 'umount -l "$work/root" "$work/home" "$work/all" 2> /dev/null || :' EXIT
"#;

fn run_in_name_space(volume: &Volume, script: &str) -> String {
    let work = volume.scratch.path("fstab");
    fs::create_dir(&work).unwrap();
    let script = format!("{SETUP}\n{script}");
    let mut unshare = in_name_space();
    unshare
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(volume.image())
        .arg(COWSHED)
        .arg(&work);
    let ran = limit::output(&mut unshare).unwrap_or_else(|e| panic!("{e:#}"));
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    said
}

#[test]
fn fstab_with_two_subvolumes_is_mounted_and_unmounted_as_a_whole() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let Some(()) = need::tool("unshare") else { return };
    let volume = Volume::new(0);
    let said = run_in_name_space(
        &volume,
        r#"
        cat > "$work/fstab" <<END
$image $work/root cowshed defaults,subvol=@,compress=zstd,x-test 0 0
$image $work/home fuse.cowshed rw,nosuid,noatime,subvol=@home,nofail 0 0
$image $work/all cowshed noauto,ro,subvolid=5 0 0
END
        mount -a -T "$work/fstab"
        mountpoint -q "$work/root" && mountpoint -q "$work/home"
        if mountpoint -q "$work/all"; then exit 8; fi
        # What is mounted already stays as it is.
        mount -a -T "$work/fstab"
        test "$(grep -c " $work/" /proc/self/mounts)" = 3
        echo root > "$work/root/f"
        echo home > "$work/home/f"
        mount -T "$work/fstab" "$work/all"
        cat "$work/all/@/f" "$work/all/@home/f"
        if touch "$work/all/@/g" 2> "$work/said"; then exit 9; fi
        grep -q Read-only "$work/said"
        pgrep -c -f "mount [-]-daemon .*$image" | sed 's/^/processes: /'
        umount -a -t fuseblk.cowshed,fuse.cowshed
        for dir in root home all; do if mountpoint -q "$work/$dir"; then exit 10; fi; done
        "#,
    );
    assert!(said.contains("root\nhome\n") && said.contains("processes: 1"), "{said}");
    wait_until_free(&volume);
    volume.assert_clean();
}

#[test]
fn mount_helper_says_what_is_wrong() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::tool("unshare") else { return };
    let volume = Volume::new(0);
    let said = run_in_name_space(
        &volume,
        r#"
        mount -t cowshed -o subvol=@,compress=lzo "$image" "$work/root"
        refused() {
            code=0
            mount -t cowshed -o "$1" "$image" "$work/home" 2> "$work/said" || code=$?
            test "$code" = 32
            grep -q "$2" "$work/said"
            if mountpoint -q "$work/home"; then exit 8; fi
        }
        refused subvol=none 'subvol=none'
        refused subvol=@home,compress=zstd '"compress" is one of the whole volume'
        refused subvol=@home,wobble 'unknown mount option "wobble"'
        mount -t cowshed -s -o subvol=@home,wobble "$image" "$work/home"
        umount "$work/home"
        mount -f -t cowshed "$image" "$work/home"
        if mountpoint -q "$work/home"; then exit 9; fi
        code=0
        "$work/sbin/mount.cowshed" "$image" 2> "$work/said" || code=$?
        test "$code" = 1
        grep -q usage "$work/said"
        umount "$work/root"
        echo well
        "#,
    );
    assert_eq!(said, "well\n");
    wait_until_free(&volume);
    volume.assert_clean();
}
