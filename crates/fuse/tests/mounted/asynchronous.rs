//! Direct writes of io_uring, whose caller does not wait in the system call: what the kernel
//! remembers of the content and the attributes before is gone when such a write is acknowledged.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use io_uring::{IoUring, opcode, types};

use crate::support::*;

const BLOCK: usize = 4096;

#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// A direct write under way. Dropped only when it was waited for.
struct Writing<'a> {
    ring: IoUring,
    _block: &'a Block,
    _file: &'a File,
}

impl<'a> Writing<'a> {
    fn begin(file: &'a File, block: &'a Block, offset: usize) -> Writing<'a> {
        let mut ring = IoUring::new(2).expect("io_uring");
        let fd = types::Fd(file.as_raw_fd());
        let write = opcode::Write::new(fd, block.0.as_ptr(), BLOCK as u32).offset(offset as u64);
        // Not in the caller's context: where the request could not be sent at once, its sender
        // would sleep in it.
        let write = write.build().flags(io_uring::squeue::Flags::ASYNC);
        // SAFETY: buffer and file are borrowed until `wait`.
        unsafe { ring.submission().push(&write) }.expect("room for one");
        ring.submit().expect("submitted");
        Writing {
            ring,
            _block: block,
            _file: file,
        }
    }

    fn wait(mut self) {
        self.ring.submit_and_wait(1).expect("it ends");
        let end = self.ring.completion().next().expect("it has ended");
        assert_eq!(end.result(), BLOCK as i32);
    }
}

fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Waits until the file system has the write and holds it back.
fn wait_until_held(mount: &Mount) {
    while mount.fs.write_waits_for_read.load(SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn page_filled_during_asynchronous_direct_write_is_dropped_before_acknowledgement() {
    let Some(_turn) = turn("page_filled_during_asynchronous_direct_write_is_dropped_before_acknowledgement") else {
        return;
    };
    for skip_open in [true, false] {
        let mount = Mount::new(|o| o.skip_open = skip_open);
        let path = mount.path("f");
        fs::write(&path, [b'a'; 16 * BLOCK]).unwrap();
        let (cached, direct) = (open(&path, 0), open(&path, libc::O_DIRECT));
        let mut got = [0; 16 * BLOCK];
        let mut expected = got;
        cached.read_exact_at(&mut expected, 0).unwrap();
        // The first write finds a file of which nothing is known, the others one that is written
        // directly.
        for (turn, byte) in (0..6).zip(b'b'..) {
            let (block, at) = (Block([byte; BLOCK]), (3 + turn) * BLOCK);
            mount.fs.write_waits_for_read.store(true, SeqCst);
            let writing = Writing::begin(&direct, &block, at);
            wait_until_held(&mount);
            cached.read_exact_at(&mut got, 0).unwrap();
            assert!(got[..at] == expected[..at] && got[at + BLOCK..] == expected[at + BLOCK..]);
            writing.wait();
            expected[at..at + BLOCK].fill(byte);
            cached.read_exact_at(&mut got, 0).unwrap();
            assert!(got == expected, "cached, turn {turn}");
            in_child(|| {
                let mut map = Map::shared(&open(&path, 0), got.len())?;
                assert!(map.bytes() == expected, "mapped, turn {turn}");
                Ok(())
            })
            .unwrap();
        }
        drop((cached, direct));
        mount.end();
    }
}

#[test]
fn buffered_and_mapped_writes_of_directly_written_file_are_served() {
    let Some(_turn) = turn("buffered_and_mapped_writes_of_directly_written_file_are_served") else {
        return;
    };
    for writeback_cache in [false, true] {
        let mount = Mount::new(|o| o.writeback_cache = writeback_cache);
        in_child(|| {
            let path = mount.path("f");
            fs::write(&path, [b'a'; 16 * BLOCK])?;
            let (cached, direct) = (open(&path, 0), open(&path, libc::O_DIRECT));
            let mut map = Map::shared(&cached, 16 * BLOCK)?;
            for byte in b'b'..b'z' {
                let block = Block([byte; BLOCK]);
                Writing::begin(&direct, &block, 3 * BLOCK).wait();
                assert!(map.bytes()[3 * BLOCK..4 * BLOCK] == block.0);
                map.bytes()[3 * BLOCK + 100] = b'-';
                cached.write_all_at(&[byte; 100], 3 * BLOCK as u64 + 1000)?;
                map.bytes()[4 * BLOCK] = byte;
                Writing::begin(&direct, &block, 3 * BLOCK).wait();
                let mut got = [0; BLOCK];
                cached.read_exact_at(&mut got, 3 * BLOCK as u64)?;
                assert!(got == block.0);
            }
            drop(map);
            assert_eq!(fs::read(&path)?[4 * BLOCK], b'y');
            Ok(())
        })
        .unwrap();
        mount.end();
    }
}

/// What the kernel says by itself, and what it says when it has to ask.
fn attributes(path: &Path) -> [(u64, i64, i64); 2] {
    [0, libc::AT_STATX_FORCE_SYNC].map(|flags| statx(path, flags).expect("the file is there"))
}

#[test]
fn attributes_looked_up_during_asynchronous_direct_write_are_forgotten() {
    let Some(_turn) = turn("attributes_looked_up_during_asynchronous_direct_write_are_forgotten") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let path = mount.path("f");
    fs::write(&path, [b'a'; 16 * BLOCK]).unwrap();
    let direct = open(&path, libc::O_DIRECT);
    let mut aligned = Block([0; BLOCK]);
    for turn in 0..4 {
        let block = Block([b'b'; BLOCK]);
        mount.fs.write_waits_for_read.store(true, SeqCst);
        let writing = Writing::begin(&direct, &block, 3 * BLOCK);
        wait_until_held(&mount);
        let before = fs::metadata(&path).unwrap();
        if turn == 2 {
            // Looked up anew, and listed with attributes.
            fs::hard_link(&path, mount.path("g")).unwrap();
            assert_eq!(fs::read_dir(mount.dir.path()).unwrap().count(), 2);
        }
        direct.read_exact_at(&mut aligned.0, 0).unwrap();
        writing.wait();
        let [known, asked] = attributes(&path);
        assert_eq!(known, asked, "turn {turn}");
        assert!(
            (asked.1, asked.2) > (before.mtime(), before.mtime_nsec()),
            "turn {turn}"
        );
    }
    drop(direct);
    mount.end();
}

#[test]
fn size_is_known_after_truncation_during_asynchronous_direct_write() {
    let Some(_turn) = turn("size_is_known_after_truncation_during_asynchronous_direct_write") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let path = mount.path("f");
    let other = mount.path("other");
    fs::write(&other, [b'o'; BLOCK]).unwrap();
    let other = open(&other, libc::O_DIRECT);
    let mut aligned = Block([0; BLOCK]);
    for size in [0, 2 * BLOCK, 20 * BLOCK] {
        fs::write(&path, [b'a'; 16 * BLOCK]).unwrap();
        let (cached, direct) = (open(&path, 0), open(&path, libc::O_DIRECT));
        let block = Block([b'b'; BLOCK]);
        mount.fs.write_waits_for_read.store(true, SeqCst);
        let writing = Writing::begin(&direct, &block, 3 * BLOCK);
        wait_until_held(&mount);
        std::thread::scope(|scope| {
            // Linux 6.18 does not let it wait for the write. Both orders are right, but only this
            // one makes the write extend the file behind Linux' back.
            let truncation = scope.spawn(|| cached.set_len(size as u64));
            std::thread::sleep(std::time::Duration::from_millis(50));
            other.read_exact_at(&mut aligned.0, 0).unwrap();
            truncation.join().unwrap().unwrap();
        });
        writing.wait();
        let [known, asked] = attributes(&path);
        assert_eq!(known, asked, "truncated to {size}");
        assert_eq!(fs::read(&path).unwrap().len() as u64, asked.0, "truncated to {size}");
    }
}

/// A rename holds the locks of its directories while it waits for the file's, which a direct write
/// holds until it is acknowledged. Dropping a name waits for the lock of its directory: were pages
/// dropped behind that, by the same thread, none of the three would end.
#[test]
fn direct_write_is_acknowledged_while_name_cannot_be_dropped() {
    let Some(_turn) = turn("direct_write_is_acknowledged_while_name_cannot_be_dropped") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(mount.path("f"), [b'a'; 2 * BLOCK]).unwrap();
    // Without pages: the test ends where it fails, too.
    File::create(dir.join("held"))
        .unwrap()
        .set_len(2 * BLOCK as u64)
        .unwrap();
    let (held, file) = (
        open(&dir.join("held"), libc::O_DIRECT),
        open(&mount.path("f"), libc::O_DIRECT),
    );
    // Pages to drop.
    fs::read(mount.path("f")).unwrap();
    mount.fs.write_waits_for_read.store(true, SeqCst);
    let node = cowshed_vfs::NodeId(fs::metadata(&dir).unwrap().ino());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // Not by io_uring: the caller holds the lock.
        let writing = scope.spawn(|| held.write_at(&Block([b'b'; BLOCK]).0, 0));
        wait_until_held(&mount);
        let renaming = scope.spawn(|| fs::rename(dir.join("held"), dir.join("moved")));
        // It returns after some time all the same, which shows that the rename has the lock.
        let tries = (0..100).take_while(|_| is_fast(|| mount.caches.name_changed(node, b"absent")));
        let tries = tries
            .inspect(|_| std::thread::sleep(std::time::Duration::from_millis(10)))
            .count();
        scope.spawn(|| {
            let block = Block([b'c'; BLOCK]);
            done.send(file.write_at(&block.0, 0)).unwrap();
        });
        let written = is_done.recv_timeout(std::time::Duration::from_secs(5));
        // Ends the write that is held, and the rename.
        let mut read = Block([0; BLOCK]);
        held.read_at(&mut read.0, BLOCK as u64).unwrap();
        writing.join().unwrap().unwrap();
        renaming.join().unwrap().unwrap();
        assert!(tries < 100, "the name could be dropped");
        assert_eq!(written.expect("it does not wait for the name").unwrap(), BLOCK);
    });
    assert_eq!(fs::read(mount.path("f")).unwrap()[..BLOCK], [b'c'; BLOCK]);
    drop((held, file));
    mount.end();
}

fn is_fast(work: impl FnOnce()) -> bool {
    let began = std::time::Instant::now();
    work();
    began.elapsed() < std::time::Duration::from_millis(500)
}
