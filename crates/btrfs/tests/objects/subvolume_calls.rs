//! Calls of subvolumes: who may make them, what happens between two at the same time, and on a
//! full volume.

use std::sync::Arc;

use btrfs_check::{CheckOptions, check};
use cowshed_btrfs::fs::MountOptions;
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::{
    Context, Credentials, Error, FileSystem, Handle, InitInfo, NodeId, Received, Search, SetAttr, Subvolumes,
    Timestamp, Volume, WriteFlags,
};

use crate::rig::{ROOT, Rig, can_run, kernel_can};

fn user(uid: u32) -> Context {
    Context::new(Credentials::new(uid, uid), 0, 0o022)
}

fn calls(rig: &Rig) -> &dyn Subvolumes {
    rig.fs.subvolumes().expect("a format with subvolumes")
}

fn assert_sound(volume: &KernelVolume) {
    volume.assert_clean();
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(volume.image(), OpenMode::ReadOnly).unwrap());
    let report = check(&[device], &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn callers_of_subvolumes_need_permission() {
    if !can_run() {
        return;
    }
    let options = MountOptions {
        owner_uid: 1002,
        ..MountOptions::default()
    };
    let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
    // The front end checks names, as Linux does for a mount; it does not check ioctls.
    let rig = Rig::mounted(volume, options, InitInfo::TRUSTED);
    let (alice, bob, server) = (user(1000), user(1001), user(1002));
    let fs = calls(&rig);
    assert_eq!(fs.create(&alice, NodeId::ROOT, b"x"), Err(Error::AccessDenied));
    let home = rig.mkdir("home").unwrap().node;
    let chown = SetAttr {
        uid: Some(1000),
        gid: Some(1000),
        ..SetAttr::default()
    };
    rig.setattr("home", &chown).unwrap();
    fs.create(&alice, home, b"own").unwrap();
    let own = rig.attr("home/own").unwrap();
    assert_eq!((own.uid, own.gid, own.perm), (1000, 1000, 0o755));
    let own = rig.node("home/own").unwrap();
    fs.create(&ROOT, NodeId::ROOT, b"foreign").unwrap();
    let foreign = rig.node("foreign").unwrap();

    let denied = Err(Error::AccessDenied);
    let not_permitted = Err(Error::NotPermitted);
    assert_eq!(fs.create(&bob, home, b"x"), denied);
    assert_eq!(fs.snapshot(&bob, own, home, b"x", false), not_permitted);
    assert_eq!(fs.snapshot(&alice, foreign, home, b"x", false), not_permitted);
    assert_eq!(fs.snapshot(&alice, own, NodeId::ROOT, b"x", false), denied);
    assert_eq!(fs.delete(&bob, home, b"own"), denied);
    assert_eq!(fs.delete(&alice, NodeId::ROOT, b"foreign"), denied);
    assert_eq!(fs.delete_by_id(&bob, fs.info(own).unwrap().id), denied);
    assert_eq!(fs.set_read_only(&bob, own, true), not_permitted);
    let received = Received {
        uuid: [1; 16],
        ..Received::default()
    };
    assert_eq!(fs.set_received(&bob, own, &received), Err(Error::NotPermitted));
    // A foreign subvolume in one's own directory: neither may it be entered, nor does it go.
    fs.create(&user(0), home, b"foreign").unwrap();
    assert_eq!(fs.delete(&alice, home, b"foreign"), denied);
    fs.snapshot(&alice, own, home, b"snap", true).unwrap();
    fs.delete(&alice, home, b"snap").unwrap();

    // What shows more than the caller's own, and what is the whole volume's.
    let anything = Search {
        tree: 1,
        from: (0, 0, 0),
        to: (u64::MAX, u8::MAX, u64::MAX),
        since: 0,
        until: u64::MAX,
    };
    for (ctx, allowed) in [(&alice, false), (&bob, false), (&server, true), (&ROOT, true)] {
        let refused = |result: cowshed_vfs::Result<()>| match allowed {
            true => result.unwrap(),
            false => assert_eq!(result, Err(Error::NotPermitted)),
        };
        refused(fs.next(ctx, 0).map(drop));
        refused(fs.default_id(ctx).map(drop));
        refused(fs.set_default(ctx, 5));
        refused(fs.path_of(ctx, home, 0, rig.attr("home").unwrap().ino).map(drop));
        refused(fs.search(ctx, home, &anything, &mut |_, _, _| std::ops::ControlFlow::Continue(())));
        refused(rig.fs.set_label(ctx, b"label"));
        assert_eq!(fs.path_of(ctx, own, 0, 256), Ok((fs.info(own).unwrap().id, Vec::new())));
    }
    assert_sound(&rig.unmount());
}

/// A subvolume is made inside of one that is being deleted: one of both fails.
#[test]
fn subvolume_made_in_one_that_is_deleted_is_never_lost() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let (mut made, mut deleted) = (0, 0);
    let pause = |micros| std::thread::sleep(std::time::Duration::from_micros(micros));
    for round in 0..300 {
        let name = format!("outer{round}");
        calls(&rig).create(&ROOT, NodeId::ROOT, name.as_bytes()).unwrap();
        // Not in the root directory, which a deletion locks.
        let outer = rig.mkdir(&format!("{name}/dir")).unwrap().node;
        let delete = || {
            // The deletion meets all of the steps of the other one.
            pause(round * 7 % 700);
            calls(&rig).delete(&ROOT, NodeId::ROOT, name.as_bytes())
        };
        let (create, delete) = std::thread::scope(|scope| {
            let delete = scope.spawn(delete);
            pause(round * 29 % 700);
            (calls(&rig).create(&ROOT, outer, b"inner"), delete.join().unwrap())
        });
        match (create, delete) {
            (Ok(()), Err(Error::NotEmpty)) => made += 1,
            (Err(Error::NotFound | Error::ReadOnly), Ok(())) => deleted += 1,
            other => panic!("round {round}: {other:?}"),
        }
    }
    assert!(made > 10 && deleted > 10, "{made} made, {deleted} deleted");
    assert_sound(&rig.unmount());
}

#[test]
fn received_uuids_defaults_and_labels_are_those_that_the_kernel_finds() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::new();
    let fs = calls(&rig);
    let uuid = [0x77; 16];
    for name in [b"one", b"two"] {
        fs.create(&ROOT, NodeId::ROOT, name).unwrap();
        let node = rig.entry_at(NodeId::ROOT, name).unwrap().node;
        let received = Received {
            uuid,
            sent_generation: 42,
            sent: Timestamp::new(1_000_000_000, 5),
        };
        let (generation, at) = fs.set_received(&ROOT, node, &received).unwrap();
        fs.set_read_only(&ROOT, node, true).unwrap();
        let info = fs.info(node).unwrap();
        assert_eq!((info.received_uuid, info.sent_generation), (uuid, 42));
        assert_eq!((info.received_generation, info.received), (generation, at));
        assert_eq!(info.sent, received.sent);
    }
    let one = rig.node("one").unwrap();
    // A read-only snapshot was received from the same; one that can be written is something else.
    fs.snapshot(&ROOT, one, NodeId::ROOT, b"same", true).unwrap();
    fs.snapshot(&ROOT, one, NodeId::ROOT, b"other", false).unwrap();
    let received = |name: &str| fs.info(rig.node(name).unwrap()).unwrap().received_uuid;
    assert_eq!((received("same"), received("other")), (uuid, [0; 16]));
    let ids = |rig: &Rig| {
        let tree = rig
            .fs
            .mount()
            .store()
            .forest()
            .require(btrfs_format::TreeId::UUID)
            .unwrap();
        let key = btrfs_format::Key::of_uuid(&uuid, btrfs_format::KeyType::UUID_RECEIVED_SUBVOL);
        let item = tree.get(&key).unwrap().map(|item| item.to_vec()).unwrap_or_default();
        let (ids, _) = item.as_chunks();
        ids.iter().map(|id| u64::from_le_bytes(*id)).collect::<Vec<_>>()
    };
    let id = |name: &str| fs.info(rig.node(name).unwrap()).unwrap().id;
    assert_eq!(ids(&rig), [id("one"), id("two"), id("same")]);
    let left = [id("two"), id("same")];
    fs.delete(&ROOT, NodeId::ROOT, b"one").unwrap();
    assert_eq!(ids(&rig), left);
    fs.set_default(&ROOT, left[0]).unwrap();
    assert_eq!(fs.delete(&ROOT, NodeId::ROOT, b"two"), Err(Error::NotPermitted));
    assert_eq!(fs.set_default(&ROOT, 12345), Err(Error::NotFound));
    rig.fs.set_label(&ROOT, b"of ours").unwrap();
    assert_eq!(rig.fs.set_label(&ROOT, &[b'x'; 256]), Err(Error::Invalid));
    let volume = rig.unmount();
    assert_sound(&volume);
    let by_kernel = volume.with_mount(|root| {
        let label = cowshed_harness::run_in(root, "btrfs", &["filesystem", "label", "."])?;
        assert_eq!(label, "of ours\n");
        let default = cowshed_harness::run_in(root, "btrfs", &["subvolume", "get-default", "."])?;
        assert!(default.starts_with(&format!("ID {} ", left[0])), "{default}");
        let list = cowshed_harness::run_in(root, "btrfs", &["subvolume", "list", "-R", "."])?;
        let with_uuid = list
            .lines()
            .filter(|line| line.contains("77777777-7777-7777-7777-777777777777"));
        assert_eq!(with_uuid.count(), 2, "{list}");
        Ok(())
    });
    by_kernel.unwrap();
    assert_sound(&volume);
}

/// The tree has no block yet when it dies, and the commit that writes it for the first time may
/// drop it, too.
#[test]
fn subvolume_deleted_in_the_transaction_that_made_it_leaves_nothing() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let store = rig.fs.mount().store().clone();
    let mut in_one = 0;
    for round in 0..60 {
        let name = format!("short{round}");
        let began = store.txn().running();
        calls(&rig).create(&ROOT, NodeId::ROOT, name.as_bytes()).unwrap();
        calls(&rig).delete(&ROOT, NodeId::ROOT, name.as_bytes()).unwrap();
        in_one += usize::from(store.txn().running() == began);
        // With the steps of the background thread, and without.
        match round % 3 {
            0 => std::thread::sleep(std::time::Duration::from_millis(5)),
            1 => rig.commit(),
            _ => {}
        }
    }
    assert!(in_one > 10, "{in_one} lived in one transaction");
    assert!(rig.names("").is_empty());
    let is_gone = || btrfs_store::commit::dead_subvolumes(store.forest()).unwrap().is_empty();
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_gone() {
        assert!(std::time::Instant::now() < patience, "they are dropped");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(store);
    assert_sound(&rig.unmount());
}

/// More than the metadata of a small volume has room for.
const EMPTY_MAX: usize = 6000;

/// Snapshots need no space for data, and a full volume can always delete.
#[test]
fn full_volume_takes_snapshots_and_gives_up_subvolumes() {
    if !can_run() {
        return;
    }
    let options = VolumeOptions {
        size_bytes: 256 << 20,
        ..VolumeOptions::default()
    };
    let rig = Rig::on(KernelVolume::make(&options).expect("mkfs.btrfs"));
    let fs = calls(&rig);
    fs.create(&ROOT, NodeId::ROOT, b"base").unwrap();
    let free_before = rig.fs.statfs(&ROOT, NodeId::ROOT).unwrap().blocks_available;
    let file = rig.create("base/large").unwrap().node;
    let piece = vec![0x5a; 1 << 20];
    let mut offset = 0;
    loop {
        match rig
            .fs
            .write(&ROOT, file, Handle::NONE, offset, &piece, WriteFlags::empty())
        {
            Ok(n) => offset += n as u64,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let base = rig.node("base").unwrap();
    let mut made = 0;
    let refusal = loop {
        let name = format!("snap{made}");
        match fs.snapshot(&ROOT, base, NodeId::ROOT, name.as_bytes(), made % 2 == 0) {
            Ok(()) => made += 1,
            Err(error) => break Some(error),
        }
        if made == 200 {
            break None;
        }
    };
    assert!(made == 200, "{made} snapshots, then {refusal:?}");
    for n in 0..made {
        fs.delete(&ROOT, NodeId::ROOT, format!("snap{n}").as_bytes()).unwrap();
    }
    // Each of these needs a block that no leaf is opened for: what was accepted can be committed.
    let empty = |n: usize| format!("empty{n}");
    let accepted = (0..EMPTY_MAX).take_while(|n| fs.create(&ROOT, NodeId::ROOT, empty(*n).as_bytes()).is_ok());
    let accepted = accepted.count();
    rig.commit();
    assert!((100..EMPTY_MAX).contains(&accepted), "{accepted} empty subvolumes");
    for n in 0..accepted {
        fs.delete(&ROOT, NodeId::ROOT, empty(n).as_bytes()).unwrap();
    }
    rig.fs.release(file, Handle::NONE);
    rig.fs.forget(file, 1);
    fs.delete(&ROOT, NodeId::ROOT, b"base").unwrap();
    assert!(rig.names("").is_empty());
    // What is in use here is dropped by the next mount, in steps.
    let rig = Rig::on(rig.unmount());
    let is_back = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        rig.commit();
        rig.fs.statfs(&ROOT, NodeId::ROOT).unwrap().blocks_available + 256 >= free_before
    });
    assert!(is_back, "the space of the deleted ones comes back");
    assert_sound(&rig.unmount());
}

/// What calls on the subvolumes "bad" and "good" say, by the harness or the engine.
type Errors = Vec<(&'static str, i32)>;

fn code<T>(result: cowshed_vfs::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

fn os_code<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

fn errors_by_the_kernel(root: &std::path::Path) -> Errors {
    let top = std::fs::File::open(root).unwrap();
    let at = |path: &str| root.join(path);
    let good = std::fs::File::open(at("good")).unwrap();
    vec![
        ("look up", os_code(std::fs::symlink_metadata(at("bad")))),
        ("read a file", os_code(std::fs::read(at("bad/file")))),
        ("read another's file", os_code(std::fs::read(at("good/file")))),
        ("delete", os_code(cowshed_harness::delete_subvolume(&top, "bad"))),
        ("remove", os_code(std::fs::remove_dir(at("bad")))),
        ("rename", os_code(std::fs::rename(at("bad"), at("moved")))),
        ("make another", os_code(cowshed_harness::create_subvolume(&top, "new"))),
        (
            "copy another",
            os_code(cowshed_harness::snapshot(&good, &top, "copy", true)),
        ),
        (
            "delete another",
            os_code(cowshed_harness::delete_subvolume(&top, "good")),
        ),
    ]
}

fn errors_by_us(rig: &Rig) -> Errors {
    let fs = calls(rig);
    let good = rig.node("good").unwrap();
    let mv = cowshed_vfs::RenameFlags::empty();
    vec![
        ("look up", code(rig.node("bad"))),
        ("read a file", code(rig.node("bad/file"))),
        ("read another's file", code(rig.node("good/file"))),
        ("delete", code(fs.delete(&ROOT, NodeId::ROOT, b"bad"))),
        ("remove", code(rig.fs.rmdir(&ROOT, NodeId::ROOT, b"bad"))),
        ("rename", code(rig.rename("bad", "moved", mv))),
        ("make another", code(fs.create(&ROOT, NodeId::ROOT, b"new"))),
        (
            "copy another",
            code(fs.snapshot(&ROOT, good, NodeId::ROOT, b"copy", true)),
        ),
        ("delete another", code(fs.delete(&ROOT, NodeId::ROOT, b"good"))),
    ]
}

/// A root item that leads to a block of another tree: the errors are those of the kernel, and all
/// other subvolumes are as before.
#[test]
fn damaged_root_item_costs_its_own_subvolume_alone() {
    use btrfs_format::items::RootItem;
    use btrfs_format::{Key, KeyType, TreeId};
    use zerocopy::{FromBytes as _, IntoBytes as _};

    if !kernel_can() {
        return;
    }
    let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
    let seed = "for n in bad good; do btrfs -q subvolume create $n; echo $n >$n/file; done";
    volume.with_mount(|root| cowshed_harness::shell(root, seed)).unwrap();
    let rig = Rig::on(volume);
    let engine = rig.fs.mount().clone();
    let forest = engine.store().forest();
    let root_tree = forest.root_tree().clone();
    let elsewhere = forest.require(TreeId::EXTENT).unwrap().root();
    let key = Key::new(TreeId(256).object_id(), KeyType::ROOT_ITEM, 0);
    let mut item = RootItem::read_from_bytes(&root_tree.get(&key).unwrap().expect("a root item")).unwrap();
    // The commit moves the extent tree: this is an old block of it, which nothing overwrites here.
    item.bytenr = elsewhere.addr.get().into();
    item.generation = elsewhere.generation.get().into();
    item.level = elsewhere.level;
    let reservation = engine.reserve(btrfs_store::space::Budget::CREATE).unwrap();
    let mut batch = btrfs_store::txn::Batch::new();
    batch.put(&root_tree, key, item.as_bytes());
    engine.store().txn().join().apply(batch, reservation);
    rig.commit();
    drop((engine, root_tree));
    let volume = rig.unmount();
    let copy = KernelVolume::copy_of(&[volume.image()]).unwrap();
    let theirs = copy.mount_with("noatime").unwrap();
    let wanted = errors_by_the_kernel(theirs.dir());
    let found_by_kernel = std::fs::read_to_string(theirs.dir().join("copy/file")).unwrap();
    // It complains, as it should.
    theirs.unmount().unwrap();
    let rig = Rig::on(volume);
    let found = errors_by_us(&rig);
    assert_eq!(found, wanted);
    assert!(rig.node("copy/file").is_ok() && found_by_kernel == "good\n");
    let volume = rig.unmount();
    // After that, the kernel finds the others whole, too.
    let mounted = volume.mount_with("ro").unwrap();
    assert_eq!(
        std::fs::read_to_string(mounted.dir().join("copy/file")).unwrap(),
        "good\n"
    );
    mounted.unmount_quietly().unwrap();
}
