//! A block device of the kernel's that writes down every write, discard and flush.
//!
//! ```text
//! the kernel's btrfs -> loop device -> the one file of a FUSE mount, served here
//!                    -> RecordingDevice -> MemDevice
//! ```
//!
//! A flush of the loop device is an fsync of its file. The file is opened past the caches of the
//! FUSE mount (and the mount has no write-back cache), so that a request arrives as the block layer
//! sent it, in its order with the flushes. What serves the file only copies memory: it waits for
//! nothing that needs the device.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, Log, On};
use cowshed_fuse::{Session, SessionError, SessionOptions, Unmounter};
use cowshed_harness::{KernelMount, LoopDevice, run_raw, scratch_dir};
use cowshed_vfs::fs::{DirSink, NewNode};
use cowshed_vfs::{
    Attr, Capabilities, Context, DirEntry, Entry, Error, FallocateFlags, FileKind, FileSystem, Handle, InitInfo,
    Lookup, NodeId, OpenHints, OpenRequest, Opened, RenameFlags, SeekKind, SetAttr, SetXattrFlags, StatFs, Timestamp,
    WriteFlags,
};
use tempfile::TempDir;

type VfsResult<T> = cowshed_vfs::Result<T>;

const IMAGE: NodeId = NodeId(2);
const IMAGE_NAME: &str = "image";
/// What the front end may remember: nothing here changes.
const VALID: Duration = Duration::from_secs(3600);
/// Requests of one loop device; the workers that serve them never wait.
const WORKERS: usize = 4;
/// How long programs that look at new block devices (udev) may keep the loop device, and so the
/// file, open.
const LETTING_GO_MAX: Duration = Duration::from_secs(20);

/// The file system of one file, of which each byte is a byte of the device.
struct OneFile {
    device: Box<dyn BlockDevice>,
}

impl OneFile {
    fn attr(&self, node: NodeId) -> VfsResult<Attr> {
        let (kind, size_bytes, perm) = match node {
            NodeId::ROOT => (FileKind::Directory, 0, 0o700),
            IMAGE => (FileKind::Regular, self.device.size_bytes(), 0o600),
            _ => return Err(Error::Stale),
        };
        let never = Timestamp::default();
        Ok(Attr {
            ino: node.0,
            size_bytes,
            blocks_512: size_bytes / 512,
            is_estimate: false,
            blksize: 4096,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: never,
            mtime: never,
            ctime: never,
            btime: never,
        })
    }
}

fn done<T, E>(result: std::result::Result<T, E>) -> VfsResult<T> {
    result.map_err(|_| Error::Io)
}

impl FileSystem for OneFile {
    fn init(&self, _: &InitInfo) -> VfsResult<Capabilities> {
        Ok(Capabilities {
            posix_acl: false,
            attr_valid: VALID,
            ..Capabilities::default()
        })
    }

    fn destroy(&self) {}

    fn lookup(&self, _: &Context, parent: NodeId, name: &[u8]) -> VfsResult<Lookup> {
        if parent != NodeId::ROOT || name != IMAGE_NAME.as_bytes() {
            return Ok(Lookup::Absent { valid: VALID });
        }
        Ok(Lookup::Found(Entry {
            node: IMAGE,
            generation: 1,
            attr: self.attr(IMAGE)?,
            entry_valid: VALID,
            attr_valid: VALID,
        }))
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn getattr(&self, _: &Context, node: NodeId, _: Option<Handle>) -> VfsResult<Attr> {
        self.attr(node)
    }

    fn open(&self, _: &Context, _: NodeId, _: &OpenRequest) -> VfsResult<Opened> {
        Ok(Opened {
            handle: Handle::NONE,
            hints: OpenHints::DIRECT_IO,
        })
    }

    fn read(&self, _: &Context, _: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> VfsResult<usize> {
        let left = self.device.size_bytes().saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        done(self.device.read_at(offset, &mut buf[..len]))?;
        Ok(len)
    }

    fn write(&self, _: &Context, _: NodeId, _: Handle, at: u64, data: &[u8], _: WriteFlags) -> VfsResult<usize> {
        done(self.device.write_at(at, data))?;
        Ok(data.len())
    }

    fn fallocate(
        &self,
        _: &Context,
        _: NodeId,
        _: Handle,
        offset: u64,
        len: u64,
        mode: FallocateFlags,
    ) -> VfsResult<()> {
        match mode {
            _ if mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE => {
                done(self.device.discard(offset, len))
            }
            _ => Err(Error::NotSupported),
        }
    }

    fn fsync(&self, _: &Context, _: NodeId, _: Handle, _: bool) -> VfsResult<()> {
        done(self.device.flush())
    }

    fn fsyncdir(&self, _: &Context, _: NodeId, _: Handle, _: bool) -> VfsResult<()> {
        Ok(())
    }

    fn syncfs(&self, _: &Context, _: NodeId) -> VfsResult<()> {
        Ok(())
    }

    fn readdir(&self, _: &Context, _: NodeId, _: Handle, cookie: u64, sink: DirSink<'_>) -> VfsResult<()> {
        if cookie == 0 {
            let _ = sink(DirEntry {
                name: IMAGE_NAME.as_bytes(),
                ino: IMAGE.0,
                kind: FileKind::Regular,
                cookie: 1,
            });
        }
        Ok(())
    }

    fn statfs(&self, _: &Context, _: NodeId) -> VfsResult<StatFs> {
        Ok(StatFs::default())
    }

    fn lseek(&self, _: &Context, _: NodeId, _: Handle, _: u64, _: SeekKind) -> VfsResult<u64> {
        Err(Error::NotImplemented)
    }

    fn setattr(&self, _: &Context, _: NodeId, _: Option<Handle>, _: &SetAttr) -> VfsResult<Attr> {
        Err(Error::NotPermitted)
    }
    fn readlink(&self, _: &Context, _: NodeId) -> VfsResult<Vec<u8>> {
        Err(Error::Invalid)
    }
    fn mknod(&self, _: &Context, _: NodeId, _: &[u8], _: NewNode) -> VfsResult<Entry> {
        Err(Error::NotPermitted)
    }
    fn mkdir(&self, _: &Context, _: NodeId, _: &[u8], _: u32) -> VfsResult<Entry> {
        Err(Error::NotPermitted)
    }
    fn unlink(&self, _: &Context, _: NodeId, _: &[u8]) -> VfsResult<()> {
        Err(Error::NotPermitted)
    }
    fn rmdir(&self, _: &Context, _: NodeId, _: &[u8]) -> VfsResult<()> {
        Err(Error::NotPermitted)
    }
    fn symlink(&self, _: &Context, _: NodeId, _: &[u8], _: &[u8]) -> VfsResult<Entry> {
        Err(Error::NotPermitted)
    }
    fn rename(&self, _: &Context, _: NodeId, _: &[u8], _: NodeId, _: &[u8], _: RenameFlags) -> VfsResult<()> {
        Err(Error::NotPermitted)
    }
    fn link(&self, _: &Context, _: NodeId, _: NodeId, _: &[u8]) -> VfsResult<Entry> {
        Err(Error::NotPermitted)
    }
    fn create(&self, _: &Context, _: NodeId, _: &[u8], _: u32, _: &OpenRequest) -> VfsResult<(Entry, Opened)> {
        Err(Error::NotPermitted)
    }
    fn getxattr(&self, _: &Context, _: NodeId, _: &[u8], _: &mut [u8]) -> VfsResult<usize> {
        Err(Error::NoData)
    }
    fn listxattr(&self, _: &Context, _: NodeId, _: &mut [u8]) -> VfsResult<usize> {
        Ok(0)
    }
    fn setxattr(&self, _: &Context, _: NodeId, _: &[u8], _: &[u8], _: SetXattrFlags) -> VfsResult<()> {
        Err(Error::NotPermitted)
    }
    fn removexattr(&self, _: &Context, _: NodeId, _: &[u8]) -> VfsResult<()> {
        Err(Error::NotPermitted)
    }
}

/// A device whose content lies in memory, under the kernel's hands.
pub struct Recorder {
    // The order of their end without a call of `end`: the loop device holds the file, the file the
    // mount.
    device: Option<LoopDevice>,
    unmounter: Unmounter,
    serving: Option<JoinHandle<Result<(), SessionError>>>,
    dir: TempDir,
    memory: Arc<MemDevice>,
    log: Log,
}

impl Recorder {
    /// Serves a copy of the device. Needs root, `/dev/fuse` and loop devices.
    pub fn new(content: &MemDevice) -> Result<Recorder> {
        Self::with_slow_reads(content, None)
    }

    /// As [`Recorder::new`]; each read takes this long.
    pub fn with_slow_reads(content: &MemDevice, pause: Option<Duration>) -> Result<Recorder> {
        let (memory, log) = (Arc::new(content.snapshot()), Log::new());
        let dir = scratch_dir()?;
        let served = dir.path().join("device");
        std::fs::create_dir(&served)?;
        let options = SessionOptions {
            workers: WORKERS,
            skip_open: false,
            ..SessionOptions::default()
        };
        let plan = FaultPlan::new();
        if let Some(pause) = pause {
            plan.add(Fault::error(On::Read, 0).with_kind(FaultKind::Slow { pause }).forever());
        }
        let file = OneFile {
            device: Box::new(FaultyDevice::new(Arc::new(log.record(memory.clone())), plan)),
        };
        let session = Session::mount(Arc::new(file), &served, options)?;
        let mut recorder = Recorder {
            device: None,
            unmounter: session.unmounter(),
            serving: Some(session.spawn()),
            dir,
            memory,
            log,
        };
        recorder.device = Some(LoopDevice::attach(served.join(IMAGE_NAME))?);
        Ok(recorder)
    }

    /// What was done to the device. Marks may be set.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// What is on the device now.
    pub fn content(&self) -> MemDevice {
        self.memory.snapshot()
    }

    /// Lets the kernel mount the volume, on a directory of the recorder's own.
    pub fn mount(&self, options: &str) -> Result<KernelMount> {
        let target = self.dir.path().join("volume");
        std::fs::create_dir_all(&target)?;
        let device = self.device.as_ref().context("the device is gone")?;
        KernelMount::new("btrfs", &[device.path()], &target, options)
    }

    /// Takes the device from the kernel. It must not be mounted.
    pub fn end(mut self) -> Result<()> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<()> {
        if let Some(device) = self.device.take() {
            forget(device.path());
        }
        let Some(serving) = self.serving.take() else {
            return Ok(());
        };
        let until = Instant::now() + LETTING_GO_MAX;
        while let Err(error) = self.unmounter.unmount(false) {
            if Instant::now() > until {
                // Programs that wait for the device get errors then.
                let _ = self.unmounter.unmount(true);
                bail!("the recorded device is still in use: {error}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        while !serving.is_finished() {
            ensure!(Instant::now() < until, "the recorded device is served on");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(serving.join().map_err(|_| anyhow!("the server panicked"))??)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            eprintln!("{error:#}");
        }
    }
}

/// The kernel is to forget which volume it has seen there: copies of it come on other devices.
fn forget(device: &Path) {
    let args = ["device", "scan", "--forget"].map(AsRef::as_ref);
    // Fails where the kernel does not know the device, which is the goal.
    let _ = run_raw("btrfs", &[&args[..], &[device.as_os_str()]].concat());
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use cowshed_device_sim::Event;
    use cowshed_harness::need;

    use super::*;

    /// What a program does to the loop device is in the log, in its order, and nothing is kept
    /// back.
    #[test]
    fn writes_and_flushes_are_written_down_in_order() {
        if need::loop_devices().is_none() || need::fuse().is_none() {
            return;
        }
        let recorder = Recorder::new(&MemDevice::new("memory", 16 << 20)).unwrap();
        let device = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(recorder.device.as_ref().unwrap().path())
            .unwrap();
        for (at, letter) in [(8192, 1_u8), (4096, 2), (1 << 20, 3)] {
            device.write_all_at(&[letter; 4096], at).unwrap();
            device.sync_all().unwrap();
        }
        drop(device);
        let (log, content) = (recorder.log().clone(), recorder.memory.clone());
        recorder.end().unwrap();
        // Programs that look at a new block device flush it when they close it, at any time.
        let events = log.events();
        let ours = events.iter().skip_while(|event| matches!(event, Event::Barrier { .. }));
        let mut seen: Vec<(u64, u8)> = ours
            .map(|event| match event {
                Event::Write { offset_bytes, data, .. } => (*offset_bytes, data[0]),
                Event::Barrier { .. } => (0, 0),
                other => panic!("{other:?}"),
            })
            .collect();
        seen.dedup();
        assert_eq!(seen[..6], [(8192, 1), (0, 0), (4096, 2), (0, 0), (1 << 20, 3), (0, 0)]);
        let mut block = [0; 4096];
        content.read_at(1 << 20, &mut block).unwrap();
        assert_eq!(block, [3; 4096]);
    }
}
