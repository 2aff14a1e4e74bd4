//! What the store's own tests share.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use btrfs_format::{Generation, LogicalAddr};
use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
pub use cowshed_harness::threads::SetOnDrop;
use cowshed_runtime::FixedEnv;

use crate::error::{Error, Result};
use crate::overlay::stripes::FrozenEdits;
use crate::space::{Budget, Drops, Flusher, MetaReservation, Space};
use crate::store::{CommitHooks, Store};
use crate::txn::CommitStats;
use crate::volume::{OpenOptions, Volume};

/// Repeatable dice (SplitMix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A fresh volume in memory, made by our own mkfs.
pub fn memory_device(size_bytes: u64, nodesize: u32) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", size_bytes));
    let mut options = MkfsOptions::new([0x5a; 16]);
    options.nodesize_bytes = Some(nodesize);
    mkfs(std::slice::from_ref(&device), &options).expect("mkfs in memory");
    device
}

/// A small volume in memory, opened for writing.
pub fn memory_volume(nodesize: u32) -> Arc<Volume> {
    Volume::open(vec![memory_device(256 << 20, nodesize)], &OpenOptions::default()).expect("a fresh volume opens")
}

/// A store without a file system above it.
#[derive(Debug)]
pub struct Engine {
    pub store: Store,
    /// Each commit discards what it freed.
    discards: bool,
}

impl Engine {
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>) -> Arc<Self> {
        Self::open_with(devices, 1 << 29, false)
    }

    /// `cache_bytes`: of tree blocks. `discards`: each commit discards what it freed.
    pub fn open_with(devices: Vec<Arc<dyn BlockDevice>>, cache_bytes: u64, discards: bool) -> Arc<Self> {
        let volume = Volume::open(devices, &OpenOptions::default()).unwrap();
        let store = Store::open(volume, Arc::new(FixedEnv::default()), cache_bytes).unwrap();
        let engine = Arc::new(Self { store, discards });
        let hooks: Weak<Self> = Arc::downgrade(&engine);
        engine.store.set_hooks(hooks);
        let flusher: Weak<Self> = Arc::downgrade(&engine);
        engine.store.space().set_flusher(flusher);
        engine.store.space().collect_freed(discards);
        engine
    }

    pub fn reserve(&self, budget: Budget) -> Result<MetaReservation> {
        self.store.txn().check_writable()?;
        self.store.space().reserve_meta(budget)
    }

    pub fn commit(&self) -> Result<()> {
        self.store.commit()
    }

    pub fn commit_stats(&self) -> CommitStats {
        self.store.commit_stats()
    }

    pub fn close(&self) -> Result<()> {
        if self.store.txn().is_aborted() {
            return Err(Error::ReadOnly);
        }
        let committed = self.commit();
        self.store.txn().close();
        committed
    }
}

impl Flusher for Engine {
    fn count_leaves(&self) {
        self.store.count_leaves();
    }
    fn write_back_data(&self) -> Result<()> {
        Ok(())
    }
    fn commit(&self) -> Result<()> {
        self.store.commit()
    }
    fn go_on_dropping(&self) -> Drops {
        Drops::None
    }
    fn pause(&self, time: Duration) {
        self.store.env().sleep(time);
    }
}

impl CommitHooks for Engine {
    fn frozen(&self, _: u64) {}
    fn unshared(&self, _: &[LogicalAddr], _: Generation) {}
    fn committed(&self, _: u64) {}
    fn merged(&self, _: Vec<Arc<FrozenEdits>>) {
        if self.discards {
            for freed in self.store.space().take_freed(usize::MAX, 0) {
                self.store.space().discard_freed(&freed).unwrap();
            }
        }
    }
}

/// Nothing is reserved any more: at the end of a test.
pub fn assert_nothing_reserved(space: &Space) {
    /// A write-back or commit in the background, which finds nothing to do, has its reservation for
    /// a moment.
    const MOMENT: Duration = Duration::from_secs(5);
    let deadline = Instant::now() + MOMENT;
    while space.reserved() != (0, 0) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        space.reserved(),
        (0, 0),
        "data bytes and tree blocks are still reserved"
    );
}
