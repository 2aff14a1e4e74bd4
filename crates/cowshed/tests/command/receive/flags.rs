//! Flags of files that forbid changes, in what is sent and in what it begins with.

use std::fs;
use std::path::Path;

use cowshed_harness::tree::snapshot;
use cowshed_harness::{KernelVolume, VolumeOptions, shell};

use super::{btrfs, can_receive, receive, sent};
use crate::mount::{Guard, unmount};
use crate::support::run;

/// What lsattr shows of files, without the places that stand for nothing.
fn attributes(dir: &Path) -> String {
    shell(dir, "lsattr -d fixed only-more dir dir/in dir/other packed | tr -d '-'").unwrap()
}

#[test]
fn immutable_files_change_where_the_stream_says_so_and_stay_immutable() {
    let Some(()) = can_receive() else { return };
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let [streams, mnt] = ["streams", "mnt"].map(|name| dir.path().join(name));
    fs::create_dir_all(&streams).unwrap();
    fs::create_dir_all(&mnt).unwrap();
    let work = |root: &Path| {
        btrfs(root, "subvolume create s");
        shell(
            root,
            "cd s; mkdir dir; echo 1 > fixed; echo 1 > only-more; echo 1 > dir/in; echo 1 > dir/free; echo 1 > packed
             chattr +i fixed dir/in dir; chattr +a only-more; cd ..; btrfs subvolume snapshot -r s s1
             cd s; chattr -i fixed dir/in dir; echo 2 > fixed; echo 2 >> only-more; echo 2 > dir/in
             mv dir/free dir/other; echo new > dir/new; chattr +i fixed dir; chattr +d dir/in
             btrfs property set packed compression lzo; touch -d '2001-02-03 04:05:06.7' packed
             cd ..; btrfs subvolume snapshot -r s s2",
        )?;
        btrfs(root, &format!("send -q --proto 2 -p s1 s2 -f {}/v2", streams.display()));
        btrfs(root, &format!("send -q --proto 1 -p s1 s2 -f {}/v1", streams.display()));
        Ok((snapshot(&root.join("s2"))?, attributes(&root.join("s2"))))
    };
    let (tree, wanted) = volume.with_mount(work).unwrap();
    let _guard = Guard(&mnt);
    run("mount {} {}", &[volume.image(), &mnt]).ok();
    for way in ["v1", "v2"] {
        fs::create_dir(mnt.join(way)).unwrap();
        receive(&streams.join(way), &mnt.join(way)).ok();
    }
    fs::create_dir(mnt.join("image")).unwrap();
    unmount(&mnt);
    let image = format!("{}:/image", volume.image().display());
    receive(&streams.join("v2"), image.as_ref()).ok();
    volume.assert_clean();
    let judge = |root: &Path| {
        for way in ["v1", "v2", "image"] {
            let received = root.join(way).join("s2");
            let differences = tree.diff(&snapshot(&received)?, &sent());
            assert!(differences.is_empty(), "{way}: {differences}");
        }
        // Version 1 does not send flags: what the parent had stays.
        assert_eq!(attributes(&root.join("v2/s2")), wanted);
        assert_eq!(attributes(&root.join("image/s2")), wanted);
        let kept = attributes(&root.join("v1/s2"));
        assert!(kept.contains("i fixed\na onlymore\ni dir\ni dir/in\n"), "{kept}");
        Ok(())
    };
    volume.with_mount(judge).unwrap();
}
