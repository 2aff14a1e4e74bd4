//! What one thread does beside another one's sync, commit, or failing write: found by reading, each
//! seen to go wrong once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use btrfs_format::{Key, KeyType, LogicalAddr, TreeId};
use cowshed_device::{BlockDevice, MemDevice, Op};
use cowshed_vfs::{Dedupe, FallocateFlags};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::WriteCtx;
use super::tests::{Bench, mount_device, plain};
use crate::block::BLOCK;
use crate::extent::{OnDisk, Walk};
use crate::fs::MountOptions;
use crate::mount::Mount;
use crate::object::Inode;
use crate::testing::SetOnDrop;

fn write(mount: &Mount, inode: &Arc<Inode>, at: u64, data: &[u8]) {
    super::write(mount, inode, at, data, WriteCtx::default()).unwrap();
}

fn content(mount: &Mount, inode: &Arc<Inode>) -> Vec<u8> {
    let mut content = vec![0xee; inode.attr_now().size as usize];
    assert_eq!(super::read(mount, inode, 0, &mut content).unwrap(), content.len());
    content
}

fn first_on_disk(inode: &Arc<Inode>) -> Option<OnDisk> {
    let first = Walk::new(&inode.tree, inode.ino, 0..BLOCK).unwrap().next().unwrap();
    first.and_then(|extent| extent.on_disk().copied())
}

/// What is in the file after a crash now. The items that are pending are committed; what is dirty
/// is lost.
fn after_a_crash(bench: &Bench) -> Vec<u8> {
    bench.mount().commit().unwrap();
    let crashed = Bench {
        device: Arc::new(bench.device.snapshot()),
        fs: mount_device(Arc::new(bench.device.snapshot()), &bench.options),
        files: vec![Vec::new()],
        options: bench.options.clone(),
    };
    crashed.check("after a crash");
    content(crashed.mount(), &crashed.inode(0))
}

/// The zeros behind an end that is moved are as good as written: the size on disk waits for them,
/// and for inline data to go.
#[test]
fn the_size_on_disk_waits_for_the_zeros_behind_the_old_end() {
    let new = || {
        let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
        bench.create();
        bench
    };
    // Cut, and grown over what was cut off.
    for grown in [BLOCK, 5 * BLOCK] {
        let bench = new();
        let (mount, inode) = (bench.mount(), bench.inode(0));
        write(mount, &inode, 0, &[7; BLOCK as usize]);
        mount.sync().unwrap();
        super::truncate(mount, &inode, 100).unwrap();
        super::truncate(mount, &inode, grown).unwrap();
        let found = after_a_crash(&bench);
        assert!(found[..100] == [7; 100], "{} bytes", found.len());
        assert!(
            found[100..].iter().all(|b| *b == 0),
            "what was cut off is back, {grown}"
        );
        super::write_back(mount, &inode).unwrap();
        assert_eq!(after_a_crash(&bench).len() as u64, grown);
    }
    // Zeroed from before its end on, over it.
    let bench = new();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    write(mount, &inode, 0, &[7; 7631]);
    mount.sync().unwrap();
    super::fallocate(mount, &inode, FallocateFlags::ZERO_RANGE, 7132, 13_195).unwrap();
    assert_eq!(
        after_a_crash(&bench),
        [7; 7631],
        "a larger size over what is to be zero"
    );
    super::write_back(mount, &inode).unwrap();
    let found = after_a_crash(&bench);
    assert!(found.len() == 7132 + 13_195 && found[7132..].iter().all(|b| *b == 0));
    // Written over, and grown, while it lies in its item.
    let bench = new();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    write(mount, &inode, 0, &[7; 100]);
    mount.sync().unwrap();
    write(mount, &inode, 0, &[8; 50]);
    super::truncate(mount, &inode, 2 * BLOCK).unwrap();
    assert_eq!(after_a_crash(&bench), [7; 100], "inline data under a larger size");
    super::write_back(mount, &inode).unwrap();
    assert_eq!(after_a_crash(&bench).len() as u64, 2 * BLOCK);
}

/// A sync beside a truncation finds the file as it was, or shorter, but never zeros in the midst of
/// it.
#[test]
fn a_truncation_shows_no_zeros_below_the_size_on_disk() {
    const SIZE: u64 = 3 * BLOCK;
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    let (mount, inode, is_over) = (bench.mount(), bench.inode(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                super::write_back(mount, &inode).unwrap();
            }
        });
        let looker = scope.spawn(|| {
            let mut seen = 0;
            let mut block = [0; BLOCK as usize];
            while !is_over.load(Ordering::Acquire) {
                // As a log would find it: no batch is half applied.
                let _alone = mount.store().txn().exclude();
                let on_disk = inode.attr.lock().disk_size;
                let Some(first) = first_on_disk(&inode).filter(|_| on_disk == SIZE) else {
                    continue;
                };
                let addr = LogicalAddr(first.addr.get() + first.offset_bytes);
                mount.store().volume().read_data(addr, &mut block, None).unwrap();
                assert!(
                    block.iter().all(|b| *b == 7),
                    "{on_disk} bytes, and zeros in the first block"
                );
                seen += 1;
            }
            seen
        });
        let over = SetOnDrop(&is_over);
        for _ in 0..3000 {
            write(mount, &inode, 0, &[7; SIZE as usize]);
            super::write_back(mount, &inode).unwrap();
            super::truncate(mount, &inode, 100).unwrap();
        }
        drop(over);
        assert!(looker.join().unwrap() > 100);
    });
}

/// A truncation that fails midway leaves the size on disk where the file ends, for the next writer
/// of the item.
#[test]
fn a_truncation_that_fails_on_its_way_leaves_no_larger_size() {
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    write(mount, &inode, 0, &[7; 40_000]);
    mount.sync().unwrap();
    std::thread::scope(|scope| {
        let flush = inode.data.flush.lock();
        let truncation = scope.spawn(|| super::truncate(mount, &inode, 100));
        // It has its reservation when it has the lock, and waits for the flush lock.
        while inode.lock.try_read().is_some() {
            std::thread::yield_now();
        }
        mount.store().txn().abort("for the test");
        drop(flush);
        truncation.join().unwrap().unwrap_err();
    });
    assert_eq!(inode.attr_now().size, 100);
    assert_eq!(inode.attr.lock().disk_size, 100);
    assert!(inode.data.state.lock().cut.is_none());
    // Its item says 40,000 still: what memory knows must not go.
    inode.refs.reset();
    drop(inode);
    mount.objects().inodes.drop_idle();
    assert_eq!(bench.inode(0).attr_now().size, 100);
}

/// Holds the next reads, which go on one by one; or all writes, which fail then.
#[derive(Debug)]
struct Held {
    below: Arc<MemDevice>,
    state: Mutex<Hold>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Hold {
    /// So many more reads.
    reads: u64,
    writes: bool,
    /// How many came, and how many of them may go on.
    came: u64,
    may_go: u64,
}

impl Held {
    /// The volume of a bench, mounted over such a device.
    fn mount(bench: &mut Bench) -> Arc<Self> {
        bench.mount().close().unwrap();
        let device = Arc::new(Self {
            below: bench.device.clone(),
            state: Mutex::default(),
            bell: Condvar::new(),
        });
        bench.fs = mount_device(device.clone(), &bench.options);
        device
    }

    fn let_go(&self, count: u64) {
        self.state.lock().may_go = count;
        self.bell.notify_all();
    }

    /// Waits until so many are held.
    fn await_held(&self, count: u64) {
        self.until(&mut self.state.lock(), |state| state.came == count);
    }

    fn until(&self, state: &mut MutexGuard<'_, Hold>, condition: impl Fn(&Hold) -> bool) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !condition(state) {
            assert!(!self.bell.wait_until(state, patience).timed_out(), "nobody came");
        }
    }

    fn wait(&self, mut state: MutexGuard<'_, Hold>) {
        state.came += 1;
        let number = state.came;
        self.bell.notify_all();
        self.until(&mut state, |state| state.may_go >= number);
    }
}

impl BlockDevice for Held {
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
        false
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> cowshed_device::Result<()> {
        let mut state = self.state.lock();
        if state.reads > 0 {
            state.reads -= 1;
            self.wait(state);
        } else {
            drop(state);
        }
        self.below.read_at(offset_bytes, buf)
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> cowshed_device::Result<()> {
        let state = self.state.lock();
        if !state.writes {
            drop(state);
            return self.below.write_at(offset_bytes, buf);
        }
        self.wait(state);
        let error = std::io::Error::other("held, and lost");
        Err(cowshed_device::Error::io(self.name(), Op::Write, offset_bytes, error))
    }
    fn flush(&self) -> cowshed_device::Result<()> {
        self.below.flush()
    }
}

/// An extent that another file gave up is not written in place before the transaction in which it
/// did is on disk, however the question and the commit meet.
#[test]
fn an_extent_is_unshared_only_when_it_is_so_on_disk() {
    let mut bench = Bench::new(
        256 << 20,
        plain,
        MountOptions {
            nodatacow: true,
            ..MountOptions::default()
        },
    );
    (0..2).for_each(|_| bench.create());
    let device = Held::mount(&mut bench);
    let mount = bench.mount();
    let (a, b) = (bench.inode(0), bench.inode(1));
    write(mount, &a, 0, &[1; 4 * BLOCK as usize]);
    super::clone_range(mount, &a, 0, &b, 0, 0).unwrap();
    mount.sync().unwrap();
    super::truncate(mount, &b, 0).unwrap();
    let first = Walk::new(&a.tree, a.ino, 0..BLOCK).unwrap().next().unwrap().unwrap();
    let disk = *first.on_disk().unwrap();
    let is_alone = || super::sharing::may_write_in_place(mount, &a, &first, &disk).unwrap();
    // The commit has to read which snapshots there are, and the question, too. That stops there
    // while the commit goes on, until the extent tree shows the end of it.
    let root_tree = mount.store().forest().root_tree();
    let path = root_tree.path(&Key::new(a.tree.id().object_id(), KeyType::ROOT_ITEM, u64::MAX));
    let (leaf, _) = *path.unwrap().last().unwrap();
    let extent_root = || mount.store().forest().require(TreeId::EXTENT).unwrap().root();
    let before = extent_root();
    mount.store().nodes().forget(leaf);
    device.state.lock().reads = 2;
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| mount.commit());
        device.await_held(1);
        let question = scope.spawn(is_alone);
        device.await_held(2);
        device.let_go(1);
        let patience = Instant::now() + Duration::from_secs(60);
        while extent_root() == before {
            assert!(Instant::now() < patience, "the commit came nowhere");
            std::thread::yield_now();
        }
        device.let_go(2);
        assert!(!question.join().unwrap(), "the commit is not on disk yet");
        commit.join().unwrap().unwrap();
    });
    assert!(is_alone());
}

/// What is compared is what is shared then, though the data that looked the same is being lost.
#[test]
fn a_target_of_deduplication_keeps_what_it_holds() {
    const LEN: u64 = 8 * BLOCK;
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    (0..2).for_each(|_| bench.create());
    let device = Held::mount(&mut bench);
    let mount = bench.mount();
    let (src, dst) = (bench.inode(0), bench.inode(1));
    write(mount, &src, 0, &[1; LEN as usize]);
    write(mount, &dst, 0, &[2; LEN as usize]);
    mount.sync().unwrap();
    write(mount, &src, 0, &[2; LEN as usize]);
    device.state.lock().writes = true;
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| super::write_back(mount, &src));
        device.await_held(1);
        let dedupe = scope.spawn(|| super::dedupe_range(mount, &src, 0, &dst, 0, LEN));
        // Time to compare, if it does so now.
        std::thread::sleep(Duration::from_millis(200));
        device.let_go(u64::MAX);
        sync.join().unwrap().unwrap_err();
        assert_eq!(dedupe.join().unwrap().unwrap(), Dedupe::Differs);
    });
    device.state.lock().writes = false;
    assert_eq!(content(mount, &src), [1; LEN as usize]);
    assert_eq!(content(mount, &dst), [2; LEN as usize]);
}

/// Inline content is cloned into memory: until it is on disk the size there does not cover it.
#[test]
fn the_size_on_disk_waits_for_inline_content_that_was_cloned() {
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    (0..2).for_each(|_| bench.create());
    let (mount, to, from) = (bench.mount(), bench.inode(0), bench.inode(1));
    write(mount, &from, 0, &[8; 32]);
    super::write_back(mount, &from).unwrap();
    write(mount, &to, 0, &[7; 14]);
    super::clone_range(mount, &from, 0, &to, 0, 0).unwrap();
    assert!(after_a_crash(&bench).is_empty(), "nothing of it was on disk yet");
    super::write_back(mount, &to).unwrap();
    assert_eq!(after_a_crash(&bench), [8; 32]);
}
