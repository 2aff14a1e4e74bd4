//! `cowshed clone -r` through a mount: the copy is compared with its source by the mount and by the
//! kernel.

use std::path::Path;

use cowshed_harness::{need, run_in, shell};

use crate::extents::fiemap;
use crate::mount::{Guard, unmount};
use crate::support::{Scratch, run};

/// Each entry below a directory, with what `cp -a` keeps.
fn listed(top: &Path) -> String {
    let find =
        r"find . -printf '%P %y %m %U %G %n %s %T@ %l\n' | sort; find . -type f -exec sha256sum {} + | sort -k 2";
    run_in(top, "sh", &["-c", find]).unwrap()
}

fn lists(top: &Path) -> String {
    let all = "find . -print0 | sort -z | xargs -0 getfattr -h -d -m - 2>/dev/null";
    run_in(top, "sh", &["-c", all]).unwrap()
}

fn fill(dir: &Path) {
    shell(
        dir,
        "mkdir -p t/a/b t/empty t/many
         for n in $(seq 300); do echo $n > t/many/f$n; done
         head -c 300001 /dev/urandom > t/data; ln t/data t/a/again; ln -s ../data t/a/link
         mkfifo t/fifo; mknod t/null c 1 3; truncate -s 3M t/hole
         fallocate -l 1M t/prealloc; dd if=/dev/urandom of=t/prealloc bs=4k count=3 seek=4 conv=notrunc
         chmod 4711 t/data; chown 1234:4321 t/data t/a; chmod 6755 t/data
         setfattr -n user.note -v here t/a/b; setfattr -n trusted.note -v there t/data
         touch -d 2001-02-03 t/a t/many t/data t",
    )
    .unwrap();
}

fn can_run() -> Option<()> {
    need::root()?;
    need::fuse()?;
    need::tool("getfattr").map(drop)
}

#[test]
fn cloned_tree_is_as_its_source_and_shares_its_extents() {
    let Some(()) = can_run() else { return };
    let scratch = Scratch::new();
    let mountpoint = scratch.mountpoint();
    run("mount {} {}", &[&scratch.image, &mountpoint]).ok();
    let _guard = Guard(&mountpoint);
    fill(&mountpoint);
    let (src, dst) = (mountpoint.join("t"), mountpoint.join("copy"));
    // A lookup that found nothing is remembered by the kernel.
    assert!(!dst.exists());
    run("clone -r {} {}", &[&src, &dst]).ok();
    assert_eq!(listed(&src), listed(&dst));
    assert_eq!(lists(&src), lists(&dst));
    // What is cloned while a commit runs shows as shared from the next one on (docs/COMPAT.md).
    run("sync {}", &[&mountpoint]).ok();
    let map = fiemap(&[], &dst.join("data"));
    assert!(map.contains("shared") && map == fiemap(&[], &src.join("data")), "{map}");
    // Into a directory that is there, under the source's name.
    run("clone -r {} {}", &[&src, &dst]).ok();
    assert_eq!(listed(&src), listed(&dst.join("t")));
    run("clone -r {} {}", &[&src, &dst]).fails(&["cloning", "File exists"]);
    run("clone -r {} {}", &[&src, &src.join("a/b/c")]).fails(&["Invalid argument"]);
    run("clone -r {} {}", &[&src, &scratch.path("elsewhere")]).fails(&["cross-device"]);
    run("clone -r {} {}", &[&scratch.path(""), &dst.join("x")])
        .fails(&["not on a mount of cowshed", "cp -a --reflink=always"]);
    run("clone {} {}", &[&src, &dst.join("x")]).fails(&["not a regular file"]);
    let (before, before_copy, attributes) = (listed(&src), listed(&dst), lists(&dst));
    unmount(&mountpoint);
    scratch.assert_clean();
    let Some(()) = need::kernel_btrfs() else { return };
    shell(
        scratch.dir.path(),
        "btrfs check -q volume.img 2>/dev/null && mount -o loop,ro volume.img mnt",
    )
    .unwrap();
    let by_kernel = (listed(&dst), lists(&dst), listed(&src));
    shell(scratch.dir.path(), "umount mnt").unwrap();
    assert_eq!(by_kernel, (before_copy, attributes, before));
}
