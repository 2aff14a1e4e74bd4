//! What the engine's own tests share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
pub use cowshed_harness::threads::SetOnDrop;

use btrfs_store::volume::{OpenOptions, Volume};

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

/// Nothing is reserved any more: at the end of a test.
pub fn assert_nothing_reserved(space: &btrfs_store::space::Space) {
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
