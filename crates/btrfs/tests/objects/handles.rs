//! Nodes found by number alone: in file handles, after they were forgotten.

use cowshed_btrfs::fs::MountOptions;
use cowshed_btrfs::fs::SubvolChoice;
use cowshed_harness::{KernelVolume, VolumeOptions, run};
use cowshed_vfs::{Entry, Error, FileKind, FileSystem, InitInfo, NodeId};

use crate::rig::{ROOT, Rig, can_run, kernel_can};

impl Rig {
    fn by_number(&self, node: NodeId) -> Result<Entry, Error> {
        self.fs.lookup_node(&ROOT, node)
    }
    /// The front end forgets all that it was told of the node, and the memory of idle ones goes.
    fn forget_all(&self, node: NodeId) {
        self.fs.forget(node, u64::MAX);
        self.cool();
        self.fs.mount().objects().inodes.drop_idle();
        assert_eq!(self.fs.getattr(&ROOT, node, None), Err(Error::Stale), "it is forgotten");
    }
    fn entry(&self, path: &str) -> Entry {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.entry_at(self.node(parent).unwrap(), name.as_bytes()).unwrap()
    }
}

fn same(found: Entry, known: &Entry, what: &str) {
    assert_eq!(
        (found.node, found.generation, found.attr),
        (known.node, known.generation, known.attr),
        "{what}"
    );
}

#[test]
fn forgotten_nodes_are_found_by_number_until_unlinked() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("dir").unwrap();
    rig.create("dir/f").unwrap();
    rig.symlink("dir/s", b"target").unwrap();
    for path in ["dir/f", "dir/s", "dir"] {
        let known = rig.entry(path);
        rig.forget_all(known.node);
        same(rig.by_number(known.node).unwrap(), &known, path);
    }
    // A remembered node without a name: the front end does not ask for it, and nothing is counted
    // where it does.
    let file = rig.entry("dir/f");
    rig.unlink("dir/f").unwrap();
    assert_eq!(rig.by_number(file.node), Err(Error::Stale));
    rig.fs.getattr(&ROOT, file.node, None).expect("still remembered");
    rig.forget_all(file.node);
    assert!(rig.is_gone(file.attr.ino), "the last lookup was the one given back");
    assert_eq!(rig.by_number(file.node), Err(Error::Stale));
    rig.unlink("dir/s").unwrap();
    let dir = rig.entry("dir");
    rig.rmdir("dir").unwrap();
    assert_eq!(rig.by_number(dir.node), Err(Error::Stale));
    assert_eq!(rig.fs.lookup_parent(&ROOT, dir.node), Err(Error::Stale));
    let root = rig.by_number(NodeId::ROOT).unwrap();
    assert_eq!((root.node, root.generation), (NodeId::ROOT, 0));
    for node in [
        0,
        2,
        255,
        256,
        100_000,
        5 << 40 | 257,
        9 << 40 | 256,
        1 << 62 | 257,
        u64::MAX,
    ] {
        assert_eq!(rig.by_number(NodeId(node)), Err(Error::Stale), "{node:#x}");
    }
    rig.finish();
}

fn nested() -> KernelVolume {
    let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
    volume
        .with_mount(|root| {
            let at = |p: &str| root.join(p).to_str().unwrap().to_string();
            for path in ["sv", "other"] {
                run("btrfs", &["subvolume", "create", &at(path)])?;
                std::fs::write(at(&format!("{path}/x")), path)?;
            }
            std::fs::create_dir(at("sv/dir"))?;
            run("btrfs", &["subvolume", "create", &at("sv/dir/nested")])?;
            std::fs::create_dir(at("sv/dir/nested/deep"))?;
            run("btrfs", &["subvolume", "snapshot", &at("sv"), &at("snap")])?;
            Ok(())
        })
        .expect("the kernel makes subvolumes");
    volume
}

fn mounted(volume: KernelVolume, subvol: &str) -> Rig {
    let options = MountOptions {
        subvol: SubvolChoice::Path(subvol.into()),
        ..MountOptions::default()
    };
    Rig::mounted(volume, options, InitInfo::TRUSTED)
}

#[test]
fn nodes_and_parents_are_found_across_subvolumes_and_remounts() {
    if !kernel_can() {
        return;
    }
    let rig = mounted(nested(), "/");
    let paths = [
        "sv",
        "sv/x",
        "other",
        "other/x",
        "sv/dir",
        "sv/dir/nested",
        "sv/dir/nested/deep",
        "snap/x",
    ];
    let known = paths.map(|path| rig.entry(path));
    // Not: by_number of what this mount has told already.
    let rig = mounted(rig.finish(), "/");
    for (path, known) in paths.iter().zip(&known).rev() {
        same(rig.by_number(known.node).unwrap(), known, path);
    }
    for (path, known) in paths
        .iter()
        .zip(&known)
        .filter(|(_, known)| known.attr.kind == FileKind::Directory)
    {
        let up = path.rsplit_once('/').map_or("", |(up, _)| up);
        let parent = rig.fs.lookup_parent(&ROOT, known.node).unwrap();
        assert_eq!(parent.node, rig.node(up).unwrap(), "above {path}");
    }
    let above_root = rig.fs.lookup_parent(&ROOT, NodeId::ROOT).unwrap();
    assert_eq!((above_root.node, above_root.generation), (NodeId::ROOT, 0));
    assert_eq!(rig.fs.lookup_parent(&ROOT, known[1].node), Err(Error::NotDirectory));
    // The stand-in for a subvolume is on no disk.
    let stand_in = rig.entry("snap/dir/nested");
    assert_eq!(rig.by_number(stand_in.node), Err(Error::Stale));
    assert_eq!(
        rig.fs.lookup_parent(&ROOT, stand_in.node).unwrap().node,
        rig.node("snap/dir").unwrap()
    );
    rig.finish();
}

#[test]
fn nodes_outside_of_the_mounted_subvolume_are_not_found() {
    if !kernel_can() {
        return;
    }
    let rig = mounted(nested(), "/");
    let [sv, other, deep] = ["sv/x", "other/x", "sv/dir/nested/deep"].map(|path| rig.entry(path));
    let rig = mounted(rig.finish(), "/sv");
    same(rig.by_number(deep.node).unwrap(), &deep, "below");
    assert_eq!(rig.by_number(other.node), Err(Error::Stale), "beside");
    assert_eq!(
        rig.by_number(sv.node),
        Err(Error::Stale),
        "the second number of one inode"
    );
    assert_eq!(rig.by_number(NodeId(5 << 40 | 256)), Err(Error::Stale), "above");
    let x = rig.entry("x");
    let top = mounted(rig.finish(), "/snap");
    let in_snapshot = top.by_number(x.node).unwrap();
    assert_ne!(in_snapshot.generation, x.generation, "the same number in the snapshot");
    top.finish();
}
