//! Superblocks that are torn while they are written, and what is left on the devices.

use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::MemDevice;
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, On};

use super::*;

/// A volume on devices in memory, each with a plan of faults, whose superblocks lead to a log.
struct Bench {
    disks: Vec<Arc<MemDevice>>,
    plans: Vec<FaultPlan>,
    volume: Arc<Volume>,
}

impl Bench {
    fn new(devices: usize) -> Self {
        let disk = |n| Arc::new(MemDevice::new(format!("memory-{n}"), 128 << 20));
        let disks: Vec<Arc<MemDevice>> = (0..devices).map(disk).collect();
        mkfs(&as_devices(&disks), &MkfsOptions::new([7; 16])).unwrap();
        let plans: Vec<_> = disks.iter().map(|_| FaultPlan::new()).collect();
        let faulty =
            |(disk, plan): (_, &FaultPlan)| Arc::new(FaultyDevice::new(disk, plan.clone())) as Arc<dyn BlockDevice>;
        let faulty = as_devices(&disks).into_iter().zip(&plans).map(faulty).collect();
        let volume = Volume::open(faulty, &OpenOptions::default()).unwrap();
        let bench = Self { disks, plans, volume };
        bench.write_log().unwrap();
        bench.volume.flush().unwrap();
        assert_eq!(bench.opened(), (bench.generation(), true));
        bench
    }

    fn generation(&self) -> u64 {
        self.volume.superblock().generation.get()
    }

    /// Another log than the one that is there; no block of it is looked at.
    fn write_log(&self) -> Result<()> {
        let mut superblock = self.volume.superblock();
        let other = if superblock.log_root == superblock.root {
            superblock.chunk_root
        } else {
            superblock.root
        };
        superblock.log_root = other;
        self.volume
            .write_superblock_copies(&superblock, SuperblockCopies::First)
    }

    fn write_commit(&self) -> Result<()> {
        let mut superblock = self.volume.superblock();
        superblock.generation = (superblock.generation.get() + 1).into();
        superblock.log_root = 0.into();
        self.volume.write_superblocks(&superblock)
    }

    /// All copies of the superblock, the first ones first.
    fn copies(&self) -> Vec<Vec<u8>> {
        let mut copies = Vec::new();
        for at in [SUPERBLOCK_OFFSETS[0], SUPERBLOCK_OFFSETS[1]] {
            for disk in &self.disks {
                let mut bytes = vec![0; SUPERBLOCK_BYTES];
                disk.read_at(at, &mut bytes).unwrap();
                copies.push(bytes);
            }
        }
        copies
    }

    /// Generation and log of the superblock that speaks for the volume when it is opened.
    fn opened(&self) -> (u64, bool) {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let found = superblocks::read_all(as_devices(&self.disks)).unwrap();
        let volume = Volume::open(as_devices(&self.disks), &options);
        assert!(volume.is_ok() || found[0].superblock.generation.get() > self.generation());
        let superblock = found[0].superblock;
        (superblock.generation.get(), superblock.log_root.get() != 0)
    }
}

fn as_devices(disks: &[Arc<MemDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>).collect()
}

/// The next write of the first copy.
fn fault(kind: FaultKind) -> Fault {
    let first = SUPERBLOCK_OFFSETS[0];
    let within = first..first + SUPERBLOCK_BYTES as u64;
    Fault::error(On::Write, 0).with_kind(kind).within(within)
}

fn torn() -> FaultKind {
    FaultKind::Torn {
        // The checksum, and nothing of what it is of.
        keep_bytes: 64,
        reported: true,
    }
}

#[test]
fn what_no_device_takes_leaves_the_superblock_before() {
    type Way = fn(&Bench) -> Result<()>;
    let ways: [(&str, Way); 2] = [("commit", Bench::write_commit), ("log", Bench::write_log)];
    for devices in [1, 2] {
        for kind in [torn(), FaultKind::Error] {
            for is_lasting in [false, true] {
                for (way, write) in ways {
                    let bench = Bench::new(devices);
                    let before = bench.copies();
                    for plan in &bench.plans {
                        let fault = fault(kind.clone());
                        plan.add(if is_lasting { fault.forever() } else { fault });
                    }
                    assert!(write(&bench).is_err());
                    let name = format!("{way}, {devices} devices, {kind:?}, for ever: {is_lasting}");
                    assert!(bench.copies() == before, "{name}");
                    assert_eq!(bench.opened(), (bench.generation(), true), "{name}");
                }
            }
        }
    }
}

/// The next commit may write over all that the one before leads to.
#[test]
fn what_another_device_took_is_not_taken_back() {
    let bench = Bench::new(2);
    let before = bench.copies();
    bench.plans[1].add(fault(torn()));
    bench.write_commit().unwrap();
    let after = bench.copies();
    assert!(
        after[0] != before[0] && after[2] != before[2],
        "the first device has it"
    );
    assert!(after[1] != before[1], "torn on the second one");
    assert!(after[3] == before[3], "whose mirror stands in");
    assert_eq!(bench.opened(), (bench.generation(), false));
    // What the second one has is too old to be given back.
    bench.plans.iter().for_each(|plan| plan.add(fault(torn())));
    assert!(bench.write_commit().is_err());
    let last = bench.copies();
    assert!(last[0] == after[0] && last[2..] == after[2..]);
    assert!(last[1] != before[1]);
    assert_eq!(bench.opened(), (bench.generation(), false));
}

#[test]
fn a_log_that_one_of_two_devices_does_not_take_leaves_both_with_one() {
    for failing in [0, 1] {
        let bench = Bench::new(2);
        let before = bench.copies();
        bench.plans[failing].add(fault(torn()));
        assert!(bench.write_log().is_err());
        let after = bench.copies();
        assert!(after[failing] == before[failing] && after[1 - failing] != before[1 - failing]);
        assert_eq!(bench.opened(), (bench.generation(), true));
        bench.write_commit().unwrap();
        assert_eq!(bench.opened(), (bench.generation(), false));
    }
}
