//! Subvolumes that the kernel began to delete: we finish it.

use std::path::Path;
use std::sync::Arc;

use btrfs_check::{CheckOptions, FindingId, Severity, check};
use btrfs_format::items::RootItem;
use btrfs_format::{Key, KeyType, TreeId};
use btrfs_store::Store;
use btrfs_store::tree::child_ptr;
use btrfs_store::volume::BlockPtr;
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, progs, run};
use cowshed_vfs::{FileSystem, Handle, NodeId, NothingHeld, Volume as _};
use zerocopy::FromBytes;

use crate::rig::{ROOT, Rig, kernel_can};

/// A block begins with its checksum.
const CSUM_BYTES: usize = 32;

fn shell(root: &Path, script: &str) {
    let script = format!("cd '{}'; {script}", root.display());
    run("bash", &["-euo", "pipefail", "-c", &script]).expect("the script");
}

/// Trees that are gone in part.
fn cut_short(volume: &KernelVolume) -> usize {
    let dump = progs::dump_tree(volume.images(), &["-t", "root"]).expect("a dump");
    let progress = dump.lines().filter(|line| line.contains("drop_progress key ("));
    progress.filter(|line| !line.contains("key (0 ")).count()
}

#[test]
fn a_deletion_that_the_kernel_began_is_finished() {
    finish_one(&[60_000, 120_000, 240_000, 480_000], true);
}

/// Of a tree that a snapshot shares as a whole, Linux rewrites the references of each shared block
/// from the top down, this engine from the lowest up: what Linux has begun is finished, too.
#[test]
fn a_deletion_of_shared_blocks_that_the_kernel_began_is_finished() {
    finish_one(&[20_000, 60_000, 120_000, 240_000, 480_000], false);
}

/// How far the kernel gets before the unmount is its matter, and on a busy machine it may be done:
/// larger trees until one is caught in the middle, and none is gone by then.
fn finish_one(sizes: &[u32], is_changed: bool) {
    if !kernel_can() {
        return;
    }
    for files in sizes {
        match finish_deletions(*files, is_changed) {
            Some(1..) => return,
            Some(0) => println!("{files} files: the kernel had not begun"),
            None => println!("{files} files: the kernel was done"),
        }
    }
    panic!("no deletion was caught in the middle");
}

fn finish_deletions(files: u32, is_changed: bool) -> Option<usize> {
    let changed = if is_changed { "777" } else { "none" };
    let kept = (1..=files).filter(|n| !is_changed || n % 1000 != 777).count();
    let mut volume = KernelVolume::make(&VolumeOptions {
        size_bytes: 2 << 30,
        node_bytes: Some(4096),
        ..VolumeOptions::default()
    })
    .expect("mkfs.btrfs");
    let by_kernel = |volume: &KernelVolume, script: &str| {
        let done = volume.with_mount(|root| {
            shell(root, script);
            Ok(())
        });
        done.expect("the kernel mounts");
    };
    let script = format!(
        "btrfs -q subvolume create sv; mkdir sv/d; cd sv/d; seq -f 'a-name-that-fills-the-leaf-%.0f' {files} | xargs touch; \
             cd ../..; btrfs filesystem sync .; btrfs -q subvolume snapshot sv snap; rm -f snap/d/a-name-that-fills-the-leaf-*{changed}"
    );
    by_kernel(&volume, &script);
    let mut caught = 0;
    for (subvolume, left) in [("sv", vec!["snap"]), ("snap", vec![])] {
        by_kernel(
            &volume,
            &format!("btrfs -q subvolume delete {subvolume}; btrfs filesystem sync ."),
        );
        caught += cut_short(&volume);
        let rig = Rig::on(volume);
        // The steps are this test's alone.
        rig.fs.mount().background().stop();
        let store = rig.fs.mount().store().clone();
        let (mut steps, mut between) = (0, 0);
        while store.queued_drops() > 0 {
            rig.commit();
            steps += 1;
            if steps % 10 == 3 {
                between += judge_between(rig.image(), &left, kept);
            }
        }
        rig.mkdir("new").expect("a directory");
        rig.commit();
        if steps <= 10 {
            rig.finish();
            return None;
        }
        assert!(between > 0, "no step of {subvolume} left the tree in part");
        assert_eq!(rig.names("").len(), left.len() + 1);
        rig.rmdir("new").expect("empty");
        volume = rig.finish();
        assert_eq!(cut_short(&volume), 0, "{subvolume} is gone");
        if let Some(snapshot) = left.first() {
            let found = volume
                .with_mount(|root| Ok(std::fs::read_dir(root.join(snapshot).join("d"))?.count()))
                .expect("the kernel mounts");
            assert_eq!(found, kept);
        }
    }
    Some(caught)
}

/// The volume as a step leaves it, after a power cut: both checkers find nothing, and the kernel
/// goes on. Returns 1 where the tree is gone in part.
fn judge_between(image: &Path, left: &[&str], kept: usize) -> usize {
    let copy = KernelVolume::copy_of(&[image]).expect("a copy");
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(copy.image(), OpenMode::ReadOnly).expect("opens"));
    let report = check(&[device], &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    copy.assert_clean();
    let cut = cut_short(&copy);
    let done = copy.with_mount(|root| {
        shell(root, "btrfs filesystem sync .; btrfs subvolume sync . > /dev/null");
        if let Some(snapshot) = left.first() {
            let found = std::fs::read_dir(root.join(snapshot).join("d"))?.count();
            assert_eq!(found, kept);
        }
        Ok(())
    });
    done.expect("the kernel goes on");
    assert_eq!(cut_short(&copy), 0, "the kernel has finished it");
    cut.min(1)
}

/// Writes a changed root item to the disk, past the engine.
fn edit_root_item(store: &Store, tree: TreeId, edit: impl Fn(&mut RootItem)) {
    let superblock = store.volume().superblock();
    let mut ptr = BlockPtr {
        addr: superblock.root.into(),
        generation: superblock.generation.into(),
        level: superblock.root_level,
        first_key: None,
    };
    let key = Key::new(tree.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let leaf = loop {
        let block = store.nodes().load(&ptr, TreeId::ROOT).expect("a block");
        if block.is_leaf() {
            break block;
        }
        ptr = child_ptr(&block, block.child_slot(&key));
    };
    let slot = leaf.search(&key).expect_err("no such offset") - 1;
    let begin = leaf.data(slot).as_ptr() as usize - leaf.bytes().as_ptr() as usize;
    let mut bytes = leaf.bytes().to_vec();
    let (item, _) = RootItem::mut_from_prefix(&mut bytes[begin..]).expect("a root item");
    edit(item);
    let kind = superblock.checksum_type().expect("a known one");
    let (place, rest) = bytes.split_at_mut(CSUM_BYTES);
    place.copy_from_slice(&kind.compute(rest));
    store.volume().write(&[(leaf.addr(), &bytes)]).expect("written");
    store.volume().flush().expect("flushed");
}

/// Linux forgets how far it is where it goes on with a deletion and is interrupted soon: the tree
/// leads to blocks that are others' by now, or free.
#[test]
fn a_deletion_that_has_lost_its_place_is_finished() {
    const FILES: usize = 3000;
    if !kernel_can() {
        return;
    }
    let rig = Rig::with_nodesize(4096);
    rig.fs.mount().background().stop();
    let store = rig.fs.mount().store().clone();
    store.set_drop_step_max(60);
    rig.fs.set_caches(Arc::new(NothingHeld));
    let calls = rig.fs.subvolumes().expect("there are");
    calls.create(&ROOT, NodeId::ROOT, b"sv").expect("made");
    for n in 0..FILES {
        rig.create(&format!("sv/a-name-that-fills-the-leaf-{n}"))
            .expect("a file");
    }
    rig.commit();
    let sv = rig.node("sv").expect("it is there");
    calls.snapshot(&ROOT, sv, NodeId::ROOT, b"snap", false).expect("made");
    // Some of its blocks are its own now.
    for n in (0..FILES).filter(|n| n % 1000 < 400) {
        rig.unlink(&format!("snap/a-name-that-fills-the-leaf-{n}"))
            .expect("it goes");
    }
    rig.commit();
    let snap = rig.fs.subvolume_of(rig.node("snap").expect("it is there"));
    let id = TreeId(snap.expect("a subvolume").id);
    calls.delete(&ROOT, NodeId::ROOT, b"snap").expect("it goes");
    let mut steps = 0;
    while rig.fs.mount().drop_deleted() && steps < 4 {
        rig.commit();
        steps += 1;
    }
    assert_eq!(steps, 4, "it is gone already");
    // Takes the room of what is gone.
    for n in 0..500 {
        rig.create(&format!("new-file-with-a-long-name-{n}")).expect("a file");
    }
    rig.commit();
    edit_root_item(&store, id, |item| {
        assert_ne!(Key::from(item.drop_progress), Key::MIN, "nothing is gone yet");
        item.drop_progress = Key::MIN.into();
        item.drop_level = 0;
    });
    drop(store);
    let volume = rig.crash();
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(volume.image(), OpenMode::ReadOnly).expect("opens"));
    let report = check(&[device], &CheckOptions::default());
    let complaints = report
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Note);
    assert!(complaints.map(|f| f.id).eq([FindingId::RootDropBehind]), "{report}");

    let rig = Rig::on(volume);
    rig.fs.mount().background().stop();
    while rig.fs.mount().drop_deleted() {
        rig.commit();
    }
    rig.create("it-goes-on").expect("a file");
    let volume = rig.finish();
    assert_eq!(cut_short(&volume), 0);
    let left = volume.with_mount(|root| Ok(std::fs::read_dir(root.join("sv"))?.count()));
    assert_eq!(left.expect("the kernel mounts"), FILES);
}

/// The 99th percentile, in microseconds, of synced small files: a new one each time.
fn p99_us(rig: &Rig, name: &str, goes_on: impl Fn(usize) -> bool) -> (usize, u128) {
    let mut times = Vec::new();
    while goes_on(times.len()) {
        let begin = std::time::Instant::now();
        let entry = rig.create(&format!("{name}{}", times.len())).expect("a file");
        rig.fs.fsync(&ROOT, entry.node, Handle::NONE, false).expect("synced");
        times.push(begin.elapsed().as_micros());
    }
    times.sort_unstable();
    (times.len(), times[times.len() * 99 / 100])
}

#[test]
#[ignore = "a measurement: a million files, two minutes; run with --release -- --ignored --nocapture"]
fn an_fsync_hardly_waits_while_a_subvolume_of_a_million_files_is_dropped() {
    const FILES: u32 = 1_000_000;
    if !kernel_can() {
        return;
    }
    let volume = KernelVolume::make(&VolumeOptions {
        size_bytes: 8 << 30,
        ..VolumeOptions::default()
    })
    .expect("mkfs.btrfs");
    let script = format!(
        "btrfs -q subvolume create sv; mkdir sv/d; cd sv/d; seq -f 'file-%.0f' {FILES} | xargs touch; cd ../..; \
         btrfs filesystem sync .; btrfs -q subvolume delete sv; btrfs filesystem sync ."
    );
    let made = volume.with_mount(|root| {
        shell(root, &script);
        Ok(())
    });
    made.expect("the kernel mounts");
    let rig = Rig::on(volume);
    let store = rig.fs.mount().store().clone();
    assert!(store.queued_drops() > 0, "the kernel has dropped it already");
    let begin = std::time::Instant::now();
    let (during, p99_during) = p99_us(&rig, "during", |_| store.queued_drops() > 0);
    let dropped = begin.elapsed();
    let (_, p99_after) = p99_us(&rig, "after", |count| count < during.max(2000));
    println!("dropped in {dropped:?}; p99 of {during} synced files: {p99_during} us, afterwards {p99_after} us");
    assert!(during > 1000, "the drop was over after {during} fsyncs");
    rig.finish();
}
