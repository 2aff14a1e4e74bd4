//! What a barrier is on a block device: a flush where it has a volatile cache, and nothing where it
//! has none.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use cowshed_harness::{LoopDevice, need};

use crate::mount::{Guard, unmount};
use crate::support::{Scratch, run, without_whole_sync};

const FSYNCS: u64 = 10;

/// What Linux knows of a block device, and counts.
struct Queue(PathBuf);

impl Queue {
    fn of(device: &Path) -> Queue {
        Queue(Path::new("/sys/block").join(device.file_name().unwrap()))
    }

    fn set_cache(&self, what: &str) {
        let path = self.0.join("queue/write_cache");
        fs::write(&path, what).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().trim(), what);
    }

    /// Flushes that the device was asked for: field 16 of `stat`.
    fn flushes(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("stat")).unwrap();
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("queue/write_cache"), "write back");
    }
}

#[test]
fn barriers_are_flushes_only_of_devices_with_a_volatile_cache() {
    let (Some(()), Some(())) = (need::fuse(), need::loop_devices()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let device = LoopDevice::attach(&volume.image).unwrap();
    let queue = Queue::of(device.path());
    let _guard = Guard(&dir);
    // Nothing but fsyncs asks for barriers meanwhile.
    let _quiet = without_whole_sync();
    run("mount -o commit=300 {} {}", &[device.path(), &dir]).ok();
    // Two barriers of each log: docs/DURABILITY.md.
    for (cache, expected) in [("write back", 2 * FSYNCS), ("write through", 0)] {
        queue.set_cache(cache);
        let before = queue.flushes();
        for n in 0..FSYNCS {
            let mut file = fs::File::create(dir.join(format!("{cache} {n}"))).unwrap();
            file.write_all(b"data").unwrap();
            file.sync_all().unwrap();
        }
        assert_eq!(queue.flushes() - before, expected, "{cache}");
    }
    unmount(&dir);
    run("check {}", &[device.path()]).ok();
}
