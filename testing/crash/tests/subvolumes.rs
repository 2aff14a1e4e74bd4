//! The power fails while subvolumes and snapshots are made and deleted: whatever is left is a sound
//! volume, and shows exactly one of the states that commits made, not older than the last call that
//! returned. The kernel sees the same in a sample.

use std::collections::BTreeMap;

use btrfs_format::Superblock;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use cowshed_crash::rig::{self, Fs, Layout, Player, ROOT};
use cowshed_device::{BlockDevice as _, MemDevice};
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_device_sim::{Log, Rng};
use cowshed_harness::{KernelVolume, need};
use cowshed_model::script::Op;
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{FileSystem, Lookup, NodeId, NothingHeld, Timestamp, Volume};

/// Steps of a run.
const STEPS: usize = 50;

struct Run<'f> {
    fs: &'f Fs,
    rng: Rng,
    /// What each commit made, by generation.
    states: BTreeMap<u64, Tree>,
    /// Paths of subvolumes; the top level is "".
    subvolumes: Vec<String>,
    made: usize,
    /// Made empty.
    born: usize,
    moved: usize,
    /// Times that trees of deleted ones were dropped.
    dropped: usize,
}

fn join(above: &str, name: &str) -> String {
    match above {
        "" => name.to_owned(),
        _ => format!("{above}/{name}"),
    }
}

impl Run<'_> {
    fn node(&self, path: &str) -> NodeId {
        let mut at = NodeId::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.fs.lookup(&ROOT, at, name.as_bytes()) {
                Ok(Lookup::Found(entry)) => at = entry.node,
                other => panic!("{path}: {other:?}"),
            }
        }
        at
    }

    fn pick(&mut self) -> String {
        let n = self.rng.index(self.subvolumes.len());
        self.subvolumes[n].clone()
    }

    /// The generation of the next commit.
    fn running(&self) -> u64 {
        self.fs.mount().store().txn().running().get()
    }

    /// Does what commits once or more. What is there before is in the first commit, and what is
    /// there afterwards in the last.
    fn committing(&mut self, what: impl FnOnce(&Fs)) {
        let first = self.running();
        self.states.insert(first, tree::take(self.fs).expect("a tree"));
        what(self.fs);
        let next = self.running();
        if next > first + 1 {
            self.states.insert(next - 1, tree::take(self.fs).expect("a tree"));
        }
    }

    fn step(&mut self) {
        match self.rng.below(13) {
            0..=4 => {
                let path = join(&self.pick(), &format!("f{}", self.rng.below(6)));
                let (offset, len) = (self.rng.below(20_000), 1 + self.rng.index(30_000));
                let fill = self.rng.next_u64();
                Player::new(self.fs)
                    .apply(&Op::write(path, offset, len, fill))
                    .expect("a write");
            }
            5 => {
                let path = join(&self.pick(), &format!("f{}", self.rng.below(6)));
                let _ = Player::new(self.fs).apply(&Op::unlink(path));
            }
            6 | 7 => {
                self.made += 1;
                let (source, above) = (self.pick(), self.pick());
                let name = format!("s{}", self.made);
                let (from, dir) = (self.node(&source), self.node(&above));
                if self.rng.one_in(3) {
                    return self.make_empty(&above, &name);
                }
                self.committing(|fs| {
                    let subvolumes = fs.subvolumes().unwrap();
                    let made = subvolumes.snapshot(&ROOT, from, dir, name.as_bytes(), false);
                    made.expect("a snapshot");
                });
                self.subvolumes.push(join(&above, &name));
            }
            8 => {
                let path = self.pick();
                let below = format!("{path}/");
                if !path.is_empty() && !self.subvolumes.iter().any(|other| other.starts_with(&below)) {
                    let (above, name) = path.rsplit_once('/').unwrap_or(("", &path));
                    let deleted = self
                        .fs
                        .subvolumes()
                        .unwrap()
                        .delete(&ROOT, self.node(above), name.as_bytes());
                    deleted.expect("it goes");
                    self.subvolumes.retain(|other| *other != path);
                }
            }
            9 | 10 => self.move_one(),
            11 => self.drop_deleted(),
            _ => self.committing(|fs| fs.sync().expect("a sync")),
        }
    }

    /// Drops trees of deleted subvolumes, which the front end remembers still and which have data
    /// that was never written.
    fn drop_deleted(&mut self) {
        let mut is_dropping = false;
        self.committing(|fs| {
            is_dropping = fs.mount().drop_deleted();
            fs.sync().expect("a sync");
        });
        self.dropped += usize::from(is_dropping);
    }

    /// Makes an empty subvolume, in the running transaction. Then an fsync in it, which the log
    /// cannot stand in for, a snapshot of it, or nothing.
    fn make_empty(&mut self, above: &str, name: &str) {
        let path = join(above, name);
        let what = self.rng.below(4);
        if what == 0 {
            // An fsync writes the data of one file.
            self.committing(|fs| fs.sync().expect("a sync"));
        }
        let before = self.running();
        let dir = self.node(above);
        let made = self.fs.subvolumes().unwrap().create(&ROOT, dir, name.as_bytes());
        made.expect("a subvolume");
        assert_eq!(self.running(), before, "an empty subvolume needs no commit");
        self.subvolumes.push(path.clone());
        self.born += 1;
        if what == 0 {
            let file = join(&path, "f0");
            let player = Player::new(self.fs);
            player.apply(&Op::write(file.clone(), 0, 5000, 9)).expect("a write");
            self.committing(|fs| Player::new(fs).apply(&Op::fsync(file)).expect("an fsync"));
            assert!(self.running() > before, "an fsync in it is a commit");
        } else if what == 1 {
            self.made += 1;
            let snapshot = format!("s{}", self.made);
            let (from, dir) = (self.node(&path), self.node(above));
            self.committing(|fs| {
                let subvolumes = fs.subvolumes().unwrap();
                let made = subvolumes.snapshot(&ROOT, from, dir, snapshot.as_bytes(), false);
                made.expect("a snapshot");
            });
            self.subvolumes.push(join(above, &snapshot));
        }
    }

    /// A subvolume gets another name, mostly in another one. Then an fsync, which the log cannot
    /// stand in for.
    fn move_one(&mut self) {
        let (path, above) = (self.pick(), self.pick());
        let is_below = |other: &str| other == path || other.starts_with(&format!("{path}/"));
        if path.is_empty() || is_below(&above) {
            return;
        }
        self.moved += 1;
        let is_synced = self.rng.one_in(2);
        if is_synced {
            // An fsync writes the data of one file.
            self.committing(|fs| fs.sync().expect("a sync"));
        }
        let new = join(&above, &format!("m{}", self.moved));
        Player::new(self.fs)
            .apply(&Op::rename(path.clone(), new.clone()))
            .expect("it moves");
        for other in &mut self.subvolumes {
            if is_below(other) {
                *other = format!("{new}{}", &other[path.len()..]);
            }
        }
        if is_synced {
            let file = join(&new, "f0");
            let player = Player::new(self.fs);
            player.apply(&Op::write(file.clone(), 0, 100, 7)).expect("a write");
            let before = self.running();
            self.committing(|fs| Player::new(fs).apply(&Op::fsync(file)).expect("an fsync"));
            assert!(self.running() > before, "an fsync after it is a commit");
        }
    }
}

/// What runs came to.
#[derive(Debug, Default)]
struct Judged {
    runs: usize,
    /// Subvolumes and snapshots that were made.
    made: usize,
    /// Times that trees of deleted ones were dropped.
    dropped: usize,
    images: u64,
    by_kernel: u64,
}

/// Runs a seed, and judges what the power failures in it leave.
fn judge_run(seed: u64, kernel_one_in: u64, all: &mut Judged) {
    let layout = if seed.is_multiple_of(2) {
        Layout::Single
    } else {
        Layout::Dup
    };
    let devices = rig::make_as(layout, 4096, rig::uuid_of(seed)).expect("mkfs");
    let bases: Vec<MemDevice> = devices.iter().map(|device| device.snapshot()).collect();
    let log = Log::new();
    let recorded = rig::shared(&devices)
        .into_iter()
        .map(|device| std::sync::Arc::new(log.record(device)) as std::sync::Arc<dyn cowshed_device::BlockDevice>)
        .collect();
    let fs = rig::mount(recorded).expect("mounts");
    // Commits are made where the run says so.
    fs.mount().background().stop();
    fs.set_caches(std::sync::Arc::new(NothingHeld));
    let first = fs.mount().store().txn().committed().get();
    let mut run = Run {
        states: BTreeMap::from([(first, tree::take(&fs).expect("a tree"))]),
        fs: &fs,
        rng: Rng::new(seed),
        subvolumes: vec![String::new()],
        made: 0,
        born: 0,
        moved: 0,
        dropped: 0,
    };
    for _ in 0..STEPS {
        run.step();
        let committed = fs.mount().store().txn().committed().get();
        log.mark(committed);
    }
    (all.runs, all.made) = (all.runs + 1, all.made + run.made);
    all.dropped += run.dropped;
    let states = run.states;
    let events = log.take();
    rig::abandon(fs);
    let options = Options {
        seed,
        exhaustive_images_max: 16,
        prefix_images_max: 8,
        sampled_images: 8,
        torn_images: 4,
        tear_bytes: 512,
    };
    let mut judged = 0;
    for image in CrashImages::new(&bases, &events, options) {
        let name = format!("seed {seed}, {image}");
        let acknowledged = image.last_mark().unwrap_or(first);
        let devices: rig::Devices = image.devices.into_iter().map(std::sync::Arc::new).collect();
        rig::check_clean(&rig::shared(&devices)).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let (generation, _) = rig::state(rig::shared(&devices)).expect("a superblock");
        assert!(generation >= acknowledged, "{name}: {acknowledged} was acknowledged");
        let expected = states.get(&generation);
        let expected = expected.unwrap_or_else(|| panic!("{name}: no commit made generation {generation}"));
        if judged % kernel_one_in == 0 && need::kernel_btrfs().is_some() && devices.iter().all(|d| is_head_whole(d)) {
            look_by_kernel(&devices, expected, &name);
            all.by_kernel += 1;
        }
        let fs = rig::mount_to_watch(rig::shared(&devices), false, Default::default()).expect("mounts");
        let found = tree::take(&fs).expect("a tree");
        let differences = tree::differences(&comparable(expected), &comparable(&found));
        assert!(
            differences.is_empty(),
            "{name}: not as generation {generation} was:\n{differences}"
        );
        rig::abandon(fs);
        judged += 1;
    }
    all.images += judged;
}

/// The kernel looks at the first copy of the superblock alone; a torn one is for the user to mend.
fn is_head_whole(device: &MemDevice) -> bool {
    let [first, ..] = SUPERBLOCK_OFFSETS;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(first, &mut bytes).expect("memory does not fail");
    Superblock::verify(&bytes, Some(first)).is_ok()
}

/// What all mounts show alike.
fn comparable(tree: &Tree) -> Tree {
    /// The bits of an inode number that the inode has for itself.
    const INO_BITS: u32 = 40;
    const STAND_IN_INO: u64 = 2;
    let mut tree = tree::committed_part(tree);
    for node in tree.values_mut() {
        node.ino &= (1 << INO_BITS) - 1;
        // The times of the stand-in for a subvolume are those of a look.
        if node.ino == STAND_IN_INO {
            node.mtime = Timestamp::default();
        }
    }
    tree
}

fn look_by_kernel(devices: &rig::Devices, expected: &Tree, name: &str) {
    let copies: Vec<MemDevice> = devices.iter().map(|device| device.snapshot()).collect();
    let volume = KernelVolume::from_memory(&copies).expect("a volume");
    volume.assert_clean();
    let mounted = volume.mount_with("noatime").expect("the kernel mounts");
    let found = tree::take_mount(mounted.dir()).expect("a tree");
    mounted.unmount().expect("unmounts");
    let differences = tree::differences(&comparable(expected), &comparable(&found));
    assert!(
        differences.is_empty(),
        "{name}: the kernel sees something else:\n{differences}"
    );
}

#[test]
fn power_fails_while_snapshots_come_and_go() {
    let mut all = Judged::default();
    for seed in 0..4 {
        judge_run(seed, 100, &mut all);
    }
    println!("{all:?}");
    assert!(
        all.images > 500 && all.made > 3 * all.runs && all.dropped >= all.runs / 2,
        "{all:?}"
    );
}

#[test]
#[ignore = "50,000 images: minutes; run with --release -- --ignored --nocapture"]
fn power_fails_while_snapshots_come_and_go_for_long() {
    let mut all = Judged::default();
    for seed in 1000.. {
        judge_run(seed, 45, &mut all);
        if all.images >= 50_000 {
            break;
        }
    }
    println!("{all:?}");
    assert!(all.made > 3 * all.runs && all.dropped > all.runs / 2, "{all:?}");
}
