//! Walks read their leaves ahead, and no further than they go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowshed::device::{BlockDevice, ReadOp, Result};
use cowshed::{MemDevice, MkfsOptions, OpenOptions, Volume};

/// Counts the reads of a device by their kind.
#[derive(Debug)]
struct Counted {
    below: Arc<dyn BlockDevice>,
    single: AtomicUsize,
    batched: AtomicUsize,
}

impl BlockDevice for Counted {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn sector_size_bytes(&self) -> u32 {
        self.below.sector_size_bytes()
    }
    fn name(&self) -> &str {
        self.below.name()
    }
    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        self.single.fetch_add(1, Relaxed);
        self.below.read_at(offset_bytes, buf)
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        self.below.write_at(offset_bytes, buf)
    }
    fn read_batch(&self, reads: &mut [ReadOp<'_>]) -> Result<()> {
        self.batched.fetch_add(reads.len(), Relaxed);
        self.below.read_batch(reads)
    }
    fn flush(&self) -> Result<()> {
        self.below.flush()
    }
}

#[test]
fn a_long_directory_is_read_ahead_and_a_short_one_is_not() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let below: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("disk", 256 << 20));
    let mut options = MkfsOptions::new([7; 16]);
    options.nodesize_bytes = Some(4096);
    cowshed::mkfs(std::slice::from_ref(&below), &options)?;
    let volume = Volume::open([below.clone()], &OpenOptions::new())?;
    volume.create_dir_all("long")?;
    volume.create_dir_all("short")?;
    for n in 0..3000 {
        volume.create(format!("long/some name {n}"))?;
    }
    volume.create("short/file")?;
    volume.close()?;

    let counted = Arc::new(Counted {
        below,
        single: AtomicUsize::new(0),
        batched: AtomicUsize::new(0),
    });
    let device: Arc<dyn BlockDevice> = counted.clone();
    let volume = Volume::open([device], &OpenOptions::new().read_only(true))?;
    let reads_of = |dir: &str, names: usize| -> cowshed::Result<(usize, usize)> {
        counted.single.store(0, Relaxed);
        counted.batched.store(0, Relaxed);
        assert_eq!(volume.read_dir(dir)?.count(), names);
        Ok((counted.single.load(Relaxed), counted.batched.load(Relaxed)))
    };
    let (single, batched) = reads_of("short", 1)?;
    assert!(batched == 0 && single < 10, "{single} {batched}");
    let (single, batched) = reads_of("long", 3000)?;
    // A name takes some 60 bytes as an index: 50 leaves and more.
    assert!((40..100).contains(&batched) && single < 10, "{single} {batched}");
    Ok(())
}
