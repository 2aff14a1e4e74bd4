//! Mounting where `/dev/fuse` cannot be opened.

use cowshed_harness::{limit, need};

use crate::support::{COMMAND_MAX, COWSHED, in_name_space, run};

/// A view of the machine with a `/dev` of its own, then `$1` to make it, then the command in the
/// rest.
const WITH_OWN_DEV: &str = "mount --make-rprivate /
mount -t tmpfs -o mode=755 none /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
eval \"$1\"
shift
exec \"$@\"";

#[test]
fn each_cause_of_an_unusable_fuse_device_is_told_by_itself() {
    let Some(()) = need::root() else { return };
    for tool in ["unshare", "setpriv", "mknod", "mount"] {
        let Some(()) = need::tool(tool) else { return };
    }
    // Not below /dev, as other scratch directories are.
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [image, dir] = ["volume.img", "mnt"].map(|name| scratch.path().join(name));
    std::fs::create_dir(&dir).unwrap();
    run("mkfs -q -b 256m {}", &[&image]).ok();
    // Root without the capability to pass over modes: as in many containers.
    let unprivileged = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"];
    for (make, before, words) in [
        ("", &[][..], ["No such file", "the device node is missing"]),
        // A number that no driver has.
        (
            "mknod -m 666 /dev/fuse c 10 251",
            &[],
            ["No such device", "CONFIG_FUSE_FS"],
        ),
        (
            "mknod -m 000 /dev/fuse c 10 229",
            &unprivileged,
            ["Permission denied", "chmod"],
        ),
    ] {
        for mode in ["-f", "-v"] {
            let mut command = in_name_space();
            command
                .args(["-m", "bash", "-ec", WITH_OWN_DEV, "bash", make])
                .args(before);
            command
                .args([COWSHED, "mount", mode, "-o", "noloop"])
                .args([&image, &dir]);
            let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{make}: {said}");
            assert!(words.iter().all(|word| said.contains(word)), "{words:?} in: {said}");
            assert!(said.contains("/dev/fuse") && !said.contains("panicked"), "{said}");
            assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        }
    }
    run("check {}", &[&image]).ok();
}
