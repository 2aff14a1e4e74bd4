//! How many barriers each way to durability takes, and what lies before them: counted on a recorded
//! device, where a missing one and a surplus one both show.

use std::sync::Arc;

use btrfs_image::{MkfsOptions, mkfs};
use cowshed_btrfs::fs::Fs;
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::{Event, Log};
use cowshed_vfs::{
    FileSystem, FlagChange, Handle, Lookup, NodeId, OpenFlags, SetAttr, SetTime, Timestamp, Volume, WriteFlags,
};

use crate::rig::{CREATE, ROOT};
use crate::rotations::mount;

/// A mount with logs, of a volume in memory.
struct Recorded {
    fs: Fs,
    log: Log,
}

/// `FS_NOCOW_FL`.
const NO_COW: FlagChange = FlagChange::Attributes(0x80_0000);

/// What a call did to the device.
#[derive(Debug, PartialEq, Eq)]
struct Done {
    writes: usize,
    flushes: usize,
    /// A write came after the last barrier: it may or may not be on disk.
    ends_dirty: bool,
}

impl Recorded {
    /// With the files `f` and `in-place`, of 20,000 bytes each, committed.
    fn new() -> Recorded {
        let base: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&base), &MkfsOptions::new([0xba; 16])).unwrap();
        let log = Log::new();
        let fs = mount(Arc::new(log.record(base)));
        let recorded = Recorded { fs, log };
        for name in ["f", "in-place"] {
            let (entry, opened) = recorded
                .fs
                .create(&ROOT, NodeId::ROOT, name.as_bytes(), 0o644, &CREATE)
                .unwrap();
            recorded.fs.release(entry.node, opened.handle);
        }
        let node = recorded.node("in-place");
        recorded.fs.set_flags(&ROOT, node, &NO_COW).unwrap();
        for name in ["f", "in-place"] {
            recorded.write(name, &[b'a'; 20_000]);
        }
        recorded.fs.mount().sync().unwrap();
        recorded
    }

    fn node(&self, name: &str) -> NodeId {
        match self.fs.lookup(&ROOT, NodeId::ROOT, name.as_bytes()).unwrap() {
            Lookup::Found(entry) => entry.node,
            Lookup::Absent { .. } => panic!("{name} is missing"),
        }
    }

    fn write(&self, name: &str, data: &[u8]) {
        let (node, flags) = (self.node(name), WriteFlags::empty());
        let written = self.fs.write(&ROOT, node, Handle::NONE, 0, data, flags).unwrap();
        assert_eq!(written, data.len());
    }

    fn set_mtime(&self, name: &str) {
        let set = SetAttr {
            mtime: Some(SetTime::At(Timestamp { secs: 1, nanos: 0 })),
            ..SetAttr::default()
        };
        self.fs.setattr(&ROOT, self.node(name), None, &set).unwrap();
    }

    fn fsync(&self, name: &str, data_only: bool) {
        self.fs.fsync(&ROOT, self.node(name), Handle::NONE, data_only).unwrap();
    }

    /// What the call did to the device.
    fn done(&self, call: impl FnOnce(&Recorded)) -> Done {
        let before = self.log.len();
        call(self);
        let events = self.log.events().split_off(before);
        let is_write = |event: &&Event| matches!(event, Event::Write { .. });
        let is_flush = |event: &&Event| matches!(event, Event::Barrier { .. });
        Done {
            writes: events.iter().filter(is_write).count(),
            flushes: events.iter().filter(is_flush).count(),
            ends_dirty: events.last().is_some_and(|last| is_write(&last)),
        }
    }

    /// The same, with the numbers of logs and commits that fsyncs have written.
    #[track_caller]
    fn takes(&self, flushes: usize, logs: u64, commits: u64, call: impl FnOnce(&Recorded)) {
        let before = self.fs.mount().log_stats();
        let done = self.done(call);
        let after = self.fs.mount().log_stats();
        assert_eq!(
            (after.syncs - before.syncs, after.commits - before.commits),
            (logs, commits),
            "{done:?}"
        );
        assert!(
            done.flushes == flushes && !done.ends_dirty,
            "{flushes} expected: {done:?}"
        );
        assert_eq!(done.writes == 0, flushes == 0, "{done:?}");
    }
}

#[test]
fn a_commit_takes_two_barriers() {
    let recorded = Recorded::new();
    recorded.write("f", b"new");
    recorded.takes(2, 0, 0, |on| on.fs.mount().sync().unwrap());
    // Nothing to write, nothing to wait for.
    recorded.takes(0, 0, 0, |on| on.fs.mount().sync().unwrap());
}

#[test]
fn a_log_takes_two_barriers() {
    let recorded = Recorded::new();
    for data_only in [false, true] {
        recorded.write("f", b"new");
        recorded.takes(2, 1, 0, |on| on.fsync("f", data_only));
    }
    recorded.takes(0, 0, 0, |on| on.fsync("f", false));
}

#[test]
fn an_fsync_that_commits_takes_two_barriers() {
    let recorded = Recorded::new();
    recorded.write("f", b"new");
    // What logs cannot say: a directory that moved.
    for name in ["d", "e"] {
        recorded.fs.mkdir(&ROOT, NodeId::ROOT, name.as_bytes(), 0o755).unwrap();
    }
    recorded.fs.mount().sync().unwrap();
    let to = recorded.node("e");
    let flags = cowshed_vfs::RenameFlags::empty();
    recorded.fs.rename(&ROOT, NodeId::ROOT, b"d", to, b"d", flags).unwrap();
    recorded.takes(2, 0, 1, |on| on.fsync("e", false));
}

#[test]
fn data_in_place_takes_one_barrier() {
    let recorded = Recorded::new();
    for round in b'b'..b'e' {
        recorded.takes(1, 0, 0, |on| {
            on.write("in-place", &[round; 4096]);
            on.fsync("in-place", true);
        });
    }
    // The times are an item.
    recorded.takes(2, 1, 0, |on| on.fsync("in-place", false));
}

#[test]
fn times_alone_take_none_for_fdatasync() {
    let recorded = Recorded::new();
    recorded.set_mtime("f");
    recorded.takes(0, 0, 0, |on| on.fsync("f", true));
    recorded.takes(2, 1, 0, |on| on.fsync("f", false));
}

#[test]
fn writes_through_o_sync_take_what_their_fsync_takes() {
    let recorded = Recorded::new();
    let none = WriteFlags::empty();
    for (name, flags, flushes, logs) in [
        ("f", OpenFlags::SYNC, 2, 1),
        ("f", OpenFlags::DATA_SYNC, 2, 1),
        ("in-place", OpenFlags::DATA_SYNC, 1, 0),
    ] {
        let request = cowshed_vfs::OpenRequest {
            flags: OpenFlags::WRITE | flags,
            kill_suidgid: false,
        };
        let node = recorded.node(name);
        let handle = recorded.fs.open(&ROOT, node, &request).unwrap().handle;
        recorded.takes(flushes, logs, 0, |on| {
            on.fs.write(&ROOT, node, handle, 0, b"synced", none).unwrap();
        });
        recorded.fs.release(node, handle);
    }
}
