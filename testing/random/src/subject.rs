//! The engine on devices in memory, spoken to in the model's operations.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context as _, Result as AnyResult};
use btrfs_image::{MkfsOptions, NewSubvolume, Profile, mkfs};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_btrfs::fs::{AtimePolicy, MountOptions};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_model::{
    Answer, At, BLOCK_BYTES, COMPRESSIONS, GROUPS, Name, Op, Outcome, PROPERTY, PROPERTY_VALUES, Place, SLOTS,
    SeekFrom, Touch, pattern, xattr_name,
};
use cowshed_runtime::Env;
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Attr, Context, Dedupe, Defrag, DirEntry, Entry, Error, Exchange, Failure, FileSystem, Handle, InitInfo, Ioctl,
    Lookup, MapKind, NodeId, OpenFlags, OpenRequest, Result, SeekKind, SetAttr, SetTime, SetXattrFlags, Timestamp,
    Volume as _, WriteFlags,
};

pub use crate::setup::Setup;

use cowshed_vfs_ioctl::Front;

use crate::open_group::OpenGroup;

/// A mount of ours, ioctls included.
pub type Fs = Front<cowshed_btrfs::fs::Fs>;

pub(crate) static ROOT: Context = Context::root();
const SETFLAGS: u32 = 0x4008_6602;
const GETFLAGS: u32 = 0x8008_6601;
pub(crate) const READ_WRITE: OpenRequest = OpenRequest {
    flags: OpenFlags::READ.union(OpenFlags::WRITE),
    kill_suidgid: false,
};

/// A clock that stands still until it is told to go on: all times of an operation are the same, and
/// known.
#[derive(Debug, Default)]
pub struct StillClock {
    millis: AtomicU64,
    dice: AtomicU64,
}

impl StillClock {
    pub fn advance(&self) -> Timestamp {
        self.millis.fetch_add(1, Ordering::Relaxed);
        self.now()
    }
}

impl Env for StillClock {
    fn now(&self) -> Timestamp {
        let millis = self.millis.load(Ordering::Relaxed);
        Timestamp::new(
            1_700_000_000 + (millis / 1000) as i64,
            (millis % 1000) as u32 * 1_000_000 + 1,
        )
    }

    fn random(&self, bytes: &mut [u8]) {
        let seed = self.dice.fetch_add(1, Ordering::Relaxed);
        let len = bytes.len();
        bytes.copy_from_slice(&pattern(seed | 1 << 63, len));
    }
}

/// A mounted volume and what is held open on it.
pub struct Subject {
    pub devices: Vec<Arc<MemDevice>>,
    pub clock: Arc<StillClock>,
    pub fs: Fs,
    pub(crate) setup: Setup,
    slots: [Option<(NodeId, Handle)>; SLOTS as usize],
    /// Lookups to give back when no slot holds the node any more.
    lookups: HashMap<NodeId, u64>,
    pub(crate) groups: [OpenGroup; GROUPS as usize],
}

pub fn as_devices(devices: &[Arc<MemDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect()
}

/// With so little memory, files leave it as soon as others come, however few there are.
const FILES_PARKED_BYTES: u64 = 1 << 20;

/// Opens a volume of these devices.
pub fn mount(devices: &[Arc<MemDevice>], clock: &Arc<StillClock>, setup: &Setup) -> AnyResult<Fs> {
    let volume = Volume::open(as_devices(devices), &OpenOptions::default()).context("opening the volume")?;
    let options = EngineOptions {
        commit_interval_s: setup.commit_interval_s,
        memory_bytes_max: setup.memory_bytes_max,
        tree_log: setup.tree_log,
        ..EngineOptions::default()
    };
    let engine = Mount::open(volume, clock.clone(), options).context("opening the engine")?;
    let options = MountOptions {
        atime: AtimePolicy::Never,
        // By force: without it files get marks, which the model knows nothing of.
        compress: setup.compress.map(|how| CompressPolicy { how, force: true }),
        nodatacow: setup.nodatacow,
        ..MountOptions::default()
    };
    let fs = cowshed_btrfs::fs::Fs::new(engine, options).context("mounting")?;
    if setup.memory_bytes_max <= FILES_PARKED_BYTES {
        fs.mount().objects().inodes.set_files_max(0);
    }
    let fs = Front::new(Arc::new(fs), clock.clone());
    fs.init(&InitInfo::TRUSTED).context("init")?;
    Ok(fs)
}

/// An identity that no other volume has. The kernel refuses a volume of several devices while
/// another volume with the same identity is mounted, and tests run side by side.
fn identity() -> [u8; 16] {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut identity = [0x42; 16];
    identity[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    identity[12..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    identity
}

impl Subject {
    /// A fresh volume.
    pub fn new(setup: &Setup) -> AnyResult<Subject> {
        let devices_needed = [setup.data, setup.metadata]
            .into_iter()
            .flatten()
            .map(Profile::devices_min)
            .max();
        let count = devices_needed.unwrap_or(1);
        let devices: Vec<_> = (0..count)
            .map(|n| Arc::new(MemDevice::new(format!("memory{n}"), setup.device_bytes)))
            .collect();
        let mut options = MkfsOptions::new(identity());
        options.nodesize_bytes = Some(setup.node_bytes);
        options.mixed = setup.mixed;
        options.data_profile = setup.data;
        options.metadata_profile = setup.metadata;
        options.features.no_holes = setup.no_holes;
        let subvolume = |(parent, name): &(_, Name)| NewSubvolume {
            parent: *parent,
            name: name.bytes(),
        };
        options.subvolumes = setup.subvolumes.iter().map(subvolume).collect();
        mkfs(&as_devices(&devices), &options).context("mkfs")?;
        Subject::on(devices, setup)
    }

    /// The devices as a crash at this moment would leave them.
    pub fn snapshot(&self) -> Vec<Arc<MemDevice>> {
        self.devices.iter().map(|d| Arc::new(d.snapshot())).collect()
    }

    /// Another view of the same kind, of other devices.
    pub fn on(devices: Vec<Arc<MemDevice>>, setup: &Setup) -> AnyResult<Subject> {
        let clock = Arc::new(StillClock::default());
        let fs = mount(&devices, &clock, setup)?;
        let slots = [None; SLOTS as usize];
        Ok(Subject {
            devices,
            clock,
            fs,
            setup: setup.clone(),
            slots,
            lookups: HashMap::new(),
            groups: Default::default(),
        })
    }

    /// Unmounts and mounts again. What is held open is closed before.
    pub fn remount(&mut self) -> AnyResult<()> {
        self.drop_groups();
        for slot in 0..SLOTS {
            self.hold(slot, None);
        }
        self.fs.destroy();
        if self.fs.mount().store().txn().is_aborted() {
            anyhow::bail!("the mount had become read-only");
        }
        self.fs = mount(&self.devices, &self.clock, &self.setup)?;
        Ok(())
    }

    /// Puts something into a slot; what it held is closed, and forgotten where no other slot holds
    /// the same.
    fn hold(&mut self, slot: u8, new: Option<(NodeId, Handle)>) {
        let Some((node, handle)) = std::mem::replace(&mut self.slots[usize::from(slot)], new) else {
            return;
        };
        if handle != Handle::NONE {
            self.fs.release(node, handle);
        }
        if !self.slots.iter().flatten().any(|held| held.0 == node) {
            self.fs.forget(node, self.lookups.remove(&node).unwrap_or(0));
        }
    }

    /// Runs `f` on a node while it is remembered.
    pub fn with<T>(&self, at: &At, f: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        match at {
            At::Slot(slot) => f(self.slots[usize::from(*slot)].ok_or(Error::BadHandle)?.0),
            At::Path(path) => {
                let node = self.acquire(path)?;
                let result = f(node);
                self.fs.forget(node, 1);
                result
            }
        }
    }

    /// The node at the end of a path, with one lookup that the caller gives back.
    fn acquire(&self, path: &[cowshed_model::Name]) -> Result<NodeId> {
        let mut node = NodeId::ROOT;
        for name in path {
            let found = self.fs.lookup(&ROOT, node, &name.bytes());
            self.fs.forget(node, 1);
            node = match found? {
                Lookup::Found(entry) => entry.node,
                Lookup::Absent { .. } => return Err(Error::NotFound),
            };
        }
        Ok(node)
    }

    fn in_dir(&self, place: &Place, f: impl FnOnce(NodeId, &[u8]) -> Result<()>) -> Outcome {
        self.with(&place.dir, |dir| f(dir, &place.name.bytes()))?;
        Ok(Answer::Done)
    }

    fn made(&self, entry: Result<Entry>) -> Result<()> {
        entry.map(|entry| self.fs.forget(entry.node, 1))
    }

    /// Does what the operation says. `Err(_)` of the outer kind: the run cannot go on.
    pub fn apply(&mut self, op: &Op) -> AnyResult<Outcome> {
        Ok(match op {
            Op::Remount => {
                self.remount()?;
                Ok(Answer::Done)
            }
            Op::Tmpfile {
                slot,
                dir,
                perm,
                exclusive,
            } => self.tmpfile(*slot, dir, *perm, *exclusive),
            Op::Open { slot, at } => self.open(*slot, at),
            Op::Close { slot } => match self.slots[usize::from(*slot)] {
                None => Err(Error::BadHandle),
                Some(_) => {
                    self.hold(*slot, None);
                    Ok(Answer::Done)
                }
            },
            Op::Stage {
                group,
                at,
                offset,
                len,
                fill,
            } => self.stage(*group, at, *offset, &pattern(*fill, *len as usize)),
            Op::EndGroup { group, commit } => self.end_group(*group, *commit),
            Op::ReadStaged { group, offset, len } => self.read_staged(*group, *offset, *len),
            _ => self.apply_shared(op),
        })
    }

    /// As `apply`, for operations that neither open nor close: from several threads at once.
    pub fn apply_shared(&self, op: &Op) -> Outcome {
        let fs = &self.fs;
        let done = |result: Result<()>| result.map(|()| Answer::Done);
        match op {
            Op::Create { .. } | Op::Mknod { .. } | Op::Mkdir { .. } | Op::Symlink { .. } => self.make(op),
            Op::Link { at, place } => self.with(at, |node| {
                self.in_dir(place, |dir, name| self.made(fs.link(&ROOT, node, dir, name)))
            }),
            Op::Unlink { place } => self.in_dir(place, |dir, name| fs.unlink(&ROOT, dir, name)),
            Op::Rmdir { place } => self.in_dir(place, |dir, name| fs.rmdir(&ROOT, dir, name)),
            Op::Rename { from, to, flags } => self.with(&from.dir, |old| {
                self.in_dir(to, |new, name| {
                    fs.rename(&ROOT, old, &from.name.bytes(), new, name, *flags)
                })
            }),
            Op::Write { .. } | Op::Read { .. } | Op::Seek { .. } | Op::Copy { .. } => self.data(op),
            Op::Clone { .. } | Op::Dedupe { .. } | Op::Exchange { .. } => self.remap(op),
            Op::Defrag {
                at,
                offset,
                len,
                target,
                compress,
            } => self.with(at, |node| {
                let compress = compress.map(|n| COMPRESSIONS[usize::from(n)].parse().expect("they exist"));
                let what = Defrag {
                    target_bytes: *target,
                    compress,
                };
                fs.defragment(node, *offset..offset.saturating_add(*len), &what)
                    .map(|_| Answer::Done)
            }),
            Op::Map { at } => self.with(at, |node| self.blocks(node).map(Answer::Blocks)),
            Op::Fallocate { at, mode, offset, len } => {
                done(self.with(at, |node| fs.fallocate(&ROOT, node, Handle::NONE, *offset, *len, *mode)))
            }
            Op::SetXattr {
                at,
                name,
                len,
                fill,
                flags,
            } => done(self.with(at, |node| {
                fs.setxattr(&ROOT, node, &xattr_name(*name), &pattern(*fill, *len as usize), *flags)
            })),
            Op::Property { at, value } => done(self.with(at, |node| {
                let name = xattr_name(PROPERTY);
                match value {
                    Some(value) => {
                        let value = PROPERTY_VALUES[usize::from(*value)];
                        fs.setxattr(&ROOT, node, &name, value, SetXattrFlags::empty())
                    }
                    None => fs.removexattr(&ROOT, node, &name),
                }
            })),
            Op::RemoveXattr { at, name } => done(self.with(at, |node| fs.removexattr(&ROOT, node, &xattr_name(*name)))),
            Op::Truncate { .. } | Op::Chmod { .. } | Op::Chown { .. } | Op::Utimes { .. } => self.set_attr(op),
            Op::Flags { at, flags } => done(self.with(at, |node| {
                let call = Ioctl {
                    cmd: SETFLAGS,
                    arg: 0,
                    compat: false,
                };
                fs.ioctl(&ROOT, node, Handle::NONE, &call, &flags.to_le_bytes(), &mut [])
                    .map(drop)
            })),
            Op::List { at } => {
                let mut names = self.with(at, |node| self.names(node, 7))?;
                names.sort();
                Ok(Answer::Names(names))
            }
            Op::Fsync { at } => done(self.with(at, |node| fs.fsync(&ROOT, node, Handle::NONE, false))),
            Op::Sync => done(fs.syncfs(&ROOT, NodeId::ROOT)),
            Op::Commit => fs
                .mount()
                .commit()
                .map(|()| Answer::Done)
                .map_err(|e| commit_error(&e.into())),
            Op::Cool => {
                fs.syncfs(&ROOT, NodeId::ROOT)?;
                fs.mount().store().nodes().drop_clean();
                Ok(Answer::Done)
            }
            Op::Remount
            | Op::Tmpfile { .. }
            | Op::Open { .. }
            | Op::Close { .. }
            | Op::Stage { .. }
            | Op::EndGroup { .. }
            | Op::ReadStaged { .. } => {
                unreachable!("these change what is held open")
            }
        }
    }

    fn make(&self, op: &Op) -> Outcome {
        let fs = &self.fs;
        match op {
            Op::Create {
                place,
                perm,
                exclusive,
                truncate,
            } => self.in_dir(place, |dir, name| {
                let mut flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
                flags.set(OpenFlags::EXCLUSIVE, *exclusive);
                flags.set(OpenFlags::TRUNCATE, *truncate);
                let (entry, opened) = fs.create(
                    &ROOT,
                    dir,
                    name,
                    *perm,
                    &OpenRequest {
                        flags,
                        kill_suidgid: false,
                    },
                )?;
                fs.release(entry.node, opened.handle);
                fs.forget(entry.node, 1);
                Ok(())
            }),
            Op::Mknod {
                place,
                kind,
                perm,
                rdev,
            } => self.in_dir(place, |dir, name| {
                let new = NewNode {
                    kind: *kind,
                    perm: *perm,
                    rdev: *rdev,
                };
                self.made(fs.mknod(&ROOT, dir, name, new))
            }),
            Op::Mkdir { place, perm } => self.in_dir(place, |dir, name| self.made(fs.mkdir(&ROOT, dir, name, *perm))),
            Op::Symlink {
                place,
                target_bytes,
                fill,
            } => self.in_dir(place, |dir, name| {
                self.made(fs.symlink(&ROOT, dir, name, &Op::target(*target_bytes, *fill)))
            }),
            _ => unreachable!("only these are given"),
        }
    }

    fn data(&self, op: &Op) -> Outcome {
        let fs = &self.fs;
        let count = |result: Result<u64>| result.map(Answer::Count);
        match op {
            Op::Write {
                at,
                offset,
                len,
                fill,
                append,
            } => count(self.with(at, |node| {
                let mut flags = WriteFlags::empty();
                flags.set(WriteFlags::APPEND, *append);
                let data = pattern(*fill, *len as usize);
                fs.write(&ROOT, node, Handle::NONE, *offset, &data, flags)
                    .map(|n| n as u64)
            })),
            Op::Read { at, offset, len } => self.with(at, |node| {
                let mut buf = vec![0xee; *len as usize];
                let got = fs.read(&ROOT, node, Handle::NONE, *offset, &mut buf)?;
                buf.truncate(got);
                Ok(Answer::Bytes(buf))
            }),
            Op::Seek { at, offset, what } => {
                let what = match what {
                    SeekFrom::Data => SeekKind::Data,
                    SeekFrom::Hole => SeekKind::Hole,
                };
                count(self.with(at, |node| fs.lseek(&ROOT, node, Handle::NONE, *offset, what)))
            }
            Op::Copy {
                src,
                src_offset,
                dst,
                dst_offset,
                len,
            } => count(self.with(src, |from| {
                self.with(dst, |to| {
                    fs.copy_file_range(
                        &ROOT,
                        (from, Handle::NONE, *src_offset),
                        (to, Handle::NONE, *dst_offset),
                        *len,
                    )
                })
            })),
            _ => unreachable!("only these are given"),
        }
    }

    fn remap(&self, op: &Op) -> Outcome {
        let fs = &self.fs;
        match op {
            Op::Clone {
                src,
                src_offset,
                dst,
                dst_offset,
                len,
            } => self.with(src, |from| {
                self.with(dst, |to| {
                    fs.clone_range(None, (from, *src_offset), (to, *dst_offset), *len)
                })
                .map(|()| Answer::Done)
            }),
            Op::Dedupe {
                src,
                src_offset,
                dst,
                dst_offset,
                len,
            } => self.with(src, |from| {
                let found = self.with(dst, |to| fs.dedupe_range((from, *src_offset), (to, *dst_offset), *len));
                Ok(match found? {
                    Dedupe::Same(bytes) => Answer::Count(bytes),
                    Dedupe::Differs => Answer::Differs,
                })
            }),
            Op::Exchange {
                a,
                a_offset,
                b,
                b_offset,
                len,
                to_eof,
            } => self.with(a, |one| {
                let what = Exchange {
                    a_offset: *a_offset,
                    b_offset: *b_offset,
                    len_bytes: *len,
                    to_eof: *to_eof,
                    only_written: false,
                    fresh_b: None,
                    dry_run: false,
                };
                self.with(b, |other| fs.exchange_range(None, one, other, &what))
                    .map(|()| Answer::Done)
            }),
            _ => unreachable!("only these are given"),
        }
    }

    fn set_attr(&self, op: &Op) -> Outcome {
        let time = |touch: &Touch| match touch {
            Touch::Keep => None,
            Touch::Now => Some(SetTime::Now),
            Touch::At(time) => Some(SetTime::At(*time)),
        };
        let none = SetAttr::default();
        let (at, set) = match op {
            Op::Truncate { at, size } => (
                at,
                SetAttr {
                    size_bytes: Some(*size),
                    ..none
                },
            ),
            Op::Chmod { at, perm } => (
                at,
                SetAttr {
                    perm: Some(*perm),
                    ..none
                },
            ),
            Op::Chown { at, uid, gid } => (
                at,
                SetAttr {
                    uid: *uid,
                    gid: *gid,
                    ..none
                },
            ),
            Op::Utimes { at, atime, mtime } => (
                at,
                SetAttr {
                    atime: time(atime),
                    mtime: time(mtime),
                    ..none
                },
            ),
            _ => unreachable!("only these are given"),
        };
        self.with(at, |node| self.fs.setattr(&ROOT, node, None, &set))
            .map(|_| Answer::Done)
    }

    fn tmpfile(&mut self, slot: u8, dir: &At, perm: u32, exclusive: bool) -> Outcome {
        let mut flags = OpenFlags::READ | OpenFlags::WRITE;
        flags.set(OpenFlags::EXCLUSIVE, exclusive);
        let request = OpenRequest {
            flags,
            kill_suidgid: false,
        };
        let (entry, opened) = self.with(dir, |dir| self.fs.tmpfile(&ROOT, dir, perm, &request))?;
        *self.lookups.entry(entry.node).or_default() += 1;
        self.hold(slot, Some((entry.node, opened.handle)));
        Ok(Answer::Done)
    }

    fn open(&mut self, slot: u8, at: &At) -> Outcome {
        let (node, lookups) = match at {
            At::Path(path) => (self.acquire(path)?, 1),
            At::Slot(other) => (self.slots[usize::from(*other)].ok_or(Error::BadHandle)?.0, 0),
        };
        let handle = match self.attr(node)?.kind {
            cowshed_vfs::FileKind::Regular => self.fs.open(&ROOT, node, &READ_WRITE)?.handle,
            _ => Handle::NONE,
        };
        *self.lookups.entry(node).or_default() += lookups;
        self.hold(slot, Some((node, handle)));
        Ok(Answer::Done)
    }

    pub fn attr(&self, node: NodeId) -> Result<Attr> {
        self.fs.getattr(&ROOT, node, None)
    }

    pub fn flags(&self, node: NodeId) -> Result<u32> {
        let call = Ioctl {
            cmd: GETFLAGS,
            arg: 0,
            compat: false,
        };
        let mut out = [0; 8];
        self.fs.ioctl(&ROOT, node, Handle::NONE, &call, &[], &mut out)?;
        Ok(u32::from_le_bytes([out[0], out[1], out[2], out[3]]))
    }

    /// Numbers of the blocks that have data in memory or on disk; what the map shows must be in
    /// order.
    pub fn blocks(&self, node: NodeId) -> Result<Vec<u64>> {
        let (mut found, mut end, mut is_sorted) = (Vec::new(), 0, true);
        self.fs.map_extents(node, 0..u64::MAX, false, &mut |extent| {
            is_sorted &= extent.len_bytes > 0 && extent.start >= end;
            end = extent.start + extent.len_bytes;
            if extent.kind != MapKind::Unwritten {
                found.extend(extent.start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES));
            }
            ControlFlow::Continue(())
        })?;
        assert!(is_sorted, "extents of a map overlap, or are empty");
        Ok(found)
    }

    /// Names in a directory, asked for `step` at a time, without `.` and `..`.
    pub fn names(&self, node: NodeId, step: usize) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (from, mut taken) = (cookie, 0);
            let mut sink = |e: DirEntry<'_>| {
                if taken == step {
                    return ControlFlow::Break(());
                }
                (taken, cookie) = (taken + 1, e.cookie);
                if e.name != b"." && e.name != b".." {
                    names.push(e.name.to_vec());
                }
                ControlFlow::Continue(())
            };
            self.fs.readdir(&ROOT, node, Handle::NONE, from, &mut sink)?;
            if taken == 0 {
                return Ok(names);
            }
        }
    }
}

pub(crate) fn commit_error(failure: &Failure) -> Error {
    match failure.error() {
        Error::NoSpace => Error::NoSpace,
        _ => Error::Io,
    }
}
