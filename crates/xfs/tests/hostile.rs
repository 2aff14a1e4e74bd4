//! Structures that no kernel writes, planted with xfs_db: reading them stays within bounds.
//!
//! Skips with a line without root, loop devices or xfsprogs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_harness::{need, run};
use cowshed_vfs::{Context, FileSystem as _, InitInfo, Lookup, NodeId};
use cowshed_xfs::{Fs, OpenOptions, Volume};

/// A device that remembers its longest read.
#[derive(Debug)]
struct Watched {
    device: FileDevice,
    longest: Arc<AtomicU64>,
}

impl BlockDevice for Watched {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn sector_size_bytes(&self) -> u32 {
        self.device.sector_size_bytes()
    }
    fn name(&self) -> &str {
        self.device.name()
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> cowshed_device::Result<()> {
        self.longest.fetch_max(buf.len() as u64, Ordering::Relaxed);
        self.device.read_at(offset_bytes, buf)
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> cowshed_device::Result<()> {
        self.device.write_at(offset_bytes, buf)
    }
    fn flush(&self) -> cowshed_device::Result<()> {
        self.device.flush()
    }
}

#[test]
fn symlink_with_a_long_extent_is_refused_before_it_is_read() {
    let Some(()) = need::kernel_xfs() else { return };
    let volume = XfsVolume::make(&XfsOptions::new("")).unwrap();
    let target = "t".repeat(1000);
    volume
        .with_mount(|root| Ok(std::os::unix::fs::symlink(&target, root.join("link"))?))
        .unwrap();
    for (blocks, is_whole) in [(1, true), (20_000, false)] {
        let write = format!("write -d u3.bmx[0].blockcount {blocks}");
        let commands = [
            "-x",
            "-c",
            "path /link",
            "-c",
            "write -d core.nblocks 20000",
            "-c",
            &write,
        ];
        let args = commands.iter().map(AsRef::as_ref).chain([volume.image().as_os_str()]);
        run("xfs_db", &args.collect::<Vec<_>>()).unwrap();
        let longest = Arc::<AtomicU64>::default();
        let device = Watched {
            device: FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked).unwrap(),
            longest: Arc::clone(&longest),
        };
        let fs = Fs::new(Arc::new(
            Volume::open(Arc::new(device), &OpenOptions::default()).unwrap(),
        ))
        .unwrap();
        fs.init(&InitInfo::TRUSTED).unwrap();
        longest.store(0, Ordering::Relaxed);
        let ctx = Context::root();
        let Lookup::Found(link) = fs.lookup(&ctx, NodeId::ROOT, b"link").unwrap() else {
            panic!("the symlink is there");
        };
        let found = fs.readlink(&ctx, link.node);
        assert_eq!(found.is_ok_and(|found| found == target.as_bytes()), is_whole);
        let longest = longest.load(Ordering::Relaxed);
        assert!(longest <= 1 << 20, "a read of {longest} bytes");
    }
}
