//! A volume of mkfs.btrfs with our file system on it, spoken to by paths.

use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_btrfs::{EngineOptions, Mount, dir};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Attr, Context, DirEntry, Entry, Error, FileKind, FileSystem, Handle, InitInfo, Lookup, NodeId, OpenFlags,
    OpenRequest, RenameFlags, Result, SetAttr, SetXattrFlags,
};
use cowshed_vfs_ioctl::Front;

pub static ROOT: Context = Context::root();
pub const CREATE: OpenRequest = OpenRequest {
    flags: OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::CREATE),
    kill_suidgid: false,
};

/// A mounted volume. [`Rig::finish`] ends the mount and lets btrfs-progs judge.
pub struct Rig {
    pub fs: Front<Fs>,
    volume: KernelVolume,
}

/// What a test needs: `None` where the machine cannot make volumes.
pub fn can_run() -> bool {
    need::tool("mkfs.btrfs").is_some()
}
pub fn kernel_can() -> bool {
    can_run() && need::kernel_btrfs().is_some()
}

impl Rig {
    pub fn new() -> Rig {
        Rig::on(KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs"))
    }
    pub fn with_nodesize(bytes: u32) -> Rig {
        let options = VolumeOptions {
            node_bytes: Some(bytes),
            ..VolumeOptions::default()
        };
        Rig::on(KernelVolume::make(&options).expect("mkfs.btrfs"))
    }
    pub fn on(volume: KernelVolume) -> Rig {
        Rig::mounted(volume, MountOptions::default(), InitInfo::TRUSTED)
    }
    pub fn mounted(volume: KernelVolume, options: MountOptions, init: InitInfo) -> Rig {
        let device = FileDevice::open(volume.image(), OpenMode::ReadWrite).expect("the image opens");
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let opened = Volume::open(vec![device], &OpenOptions::default()).expect("the volume opens");
        let engine_options = EngineOptions {
            commit_interval_s: 0,
            tree_log: true,
            ..EngineOptions::default()
        };
        let engine = Mount::open(opened, Arc::new(SystemEnv), engine_options).expect("the engine opens");
        let fs = Front::new(Arc::new(Fs::new(engine, options).expect("mounts")), Arc::new(SystemEnv));
        fs.init(&init).expect("init");
        Rig { fs, volume }
    }

    /// Ends the mount without a check.
    pub fn unmount(self) -> KernelVolume {
        self.fs.destroy();
        self.volume
    }
    /// Stops after the last commit.
    pub fn crash(self) -> KernelVolume {
        self.fs.mount().store().txn().abort("a test stops here");
        self.volume
    }
    /// Ends the mount; btrfs-progs must find nothing.
    pub fn finish(self) -> KernelVolume {
        let volume = self.unmount();
        volume.assert_clean();
        volume
    }
    pub fn remount(self) -> Rig {
        Rig::on(self.finish())
    }
    pub fn commit(&self) {
        self.fs.mount().sync().expect("a commit");
    }
    /// Drops all that is cached, so that the next look goes to the trees.
    pub fn cool(&self) {
        self.commit();
        self.fs.mount().store().nodes().drop_clean();
    }

    pub fn entry_at(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        match self.fs.lookup(&ROOT, parent, name)? {
            Lookup::Found(entry) => Ok(entry),
            Lookup::Absent { .. } => Err(Error::NotFound),
        }
    }
    pub fn node(&self, path: &str) -> Result<NodeId> {
        let mut at = NodeId::ROOT;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            at = self.entry_at(at, name.as_bytes())?.node;
        }
        Ok(at)
    }
    pub fn attr(&self, path: &str) -> Result<Attr> {
        self.fs.getattr(&ROOT, self.node(path)?, None)
    }
    pub fn exists(&self, path: &str) -> bool {
        match self.node(path) {
            Ok(_) => true,
            Err(Error::NotFound | Error::NotDirectory) => false,
            Err(other) => panic!("{path}: {other}"),
        }
    }
    fn split<'p>(&self, path: &'p str) -> Result<(NodeId, &'p [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.node(parent)?, name.as_bytes()))
    }

    pub fn create(&self, path: &str) -> Result<Entry> {
        let (parent, name) = self.split(path)?;
        let request = OpenRequest {
            flags: CREATE.flags | OpenFlags::EXCLUSIVE,
            ..CREATE
        };
        let (entry, opened) = self.fs.create(&ROOT, parent, name, 0o644, &request)?;
        self.fs.release(entry.node, opened.handle);
        Ok(entry)
    }
    pub fn mkdir(&self, path: &str) -> Result<Entry> {
        let (parent, name) = self.split(path)?;
        self.fs.mkdir(&ROOT, parent, name, 0o755)
    }
    pub fn symlink(&self, path: &str, target: &[u8]) -> Result<Entry> {
        let (parent, name) = self.split(path)?;
        self.fs.symlink(&ROOT, parent, name, target)
    }
    pub fn mknod(&self, path: &str, kind: FileKind, rdev: u32) -> Result<Entry> {
        let (parent, name) = self.split(path)?;
        self.fs.mknod(
            &ROOT,
            parent,
            name,
            NewNode {
                kind,
                perm: 0o600,
                rdev,
            },
        )
    }
    pub fn link(&self, path: &str, new: &str) -> Result<Entry> {
        let (parent, name) = self.split(new)?;
        self.fs.link(&ROOT, self.node(path)?, parent, name)
    }
    pub fn unlink(&self, path: &str) -> Result<()> {
        let (parent, name) = self.split(path)?;
        self.fs.unlink(&ROOT, parent, name)
    }
    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.split(path)?;
        self.fs.rmdir(&ROOT, parent, name)
    }
    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        let ((from, name), (to, new_name)) = (self.split(from)?, self.split(to)?);
        self.fs.rename(&ROOT, from, name, to, new_name, flags)
    }
    pub fn setattr(&self, path: &str, set: &SetAttr) -> Result<Attr> {
        self.fs.setattr(&ROOT, self.node(path)?, None, set)
    }
    pub fn set_xattr(&self, path: &str, name: &str, value: &[u8]) -> Result<()> {
        let flags = SetXattrFlags::empty();
        self.fs.setxattr(&ROOT, self.node(path)?, name.as_bytes(), value, flags)
    }
    pub fn xattr(&self, path: &str, name: &str) -> Result<Vec<u8>> {
        let mut buf = vec![0; 65536];
        let len = self.fs.getxattr(&ROOT, self.node(path)?, name.as_bytes(), &mut buf)?;
        buf.truncate(len);
        Ok(buf)
    }
    pub fn xattr_names(&self, path: &str) -> Vec<String> {
        let mut buf = vec![0; 65536];
        let len = self.fs.listxattr(&ROOT, self.node(path).unwrap(), &mut buf).unwrap();
        let names = buf[..len].split(|b| *b == 0).filter(|n| !n.is_empty());
        let mut names: Vec<_> = names.map(|n| String::from_utf8(n.to_vec()).unwrap()).collect();
        names.sort();
        names
    }

    #[allow(dead_code)] // For tests/fsync.
    pub fn image(&self) -> &std::path::Path {
        self.volume.image()
    }

    /// Names and cookies from a cookie on, at most `count`.
    pub fn list_from(&self, path: &str, cookie: u64, count: usize) -> Vec<(String, u64, u64)> {
        let mut out = Vec::new();
        let mut sink = |e: DirEntry<'_>| {
            if out.len() == count {
                return ControlFlow::Break(());
            }
            out.push((String::from_utf8_lossy(e.name).into_owned(), e.cookie, e.ino));
            ControlFlow::Continue(())
        };
        let node = self.node(path).unwrap();
        self.fs.readdir(&ROOT, node, Handle::NONE, cookie, &mut sink).unwrap();
        out
    }
    /// All names but `.` and `..`, in the order of the directory.
    pub fn names(&self, path: &str) -> Vec<String> {
        let all = self.list_from(path, 0, usize::MAX);
        all.into_iter().skip(2).map(|(name, ..)| name).collect()
    }

    /// Items of an object in the mounted subvolume's tree.
    pub fn items(&self, ino: u64, ty: KeyType) -> Vec<(Key, Vec<u8>)> {
        let tree = self.fs.mount().store().forest().require(TreeId::FS).unwrap();
        let all = tree.cursor_type(Key::new(ObjectId(ino), ty, 0)).collect().unwrap();
        all.into_iter().map(|(k, item)| (k, item.to_vec())).collect()
    }
    /// Numbers of the inodes that wait for their deletion.
    pub fn orphans(&self) -> Vec<u64> {
        let items = self.items(ObjectId::ORPHAN.0, KeyType::ORPHAN_ITEM);
        items.into_iter().map(|(key, _)| key.offset).collect()
    }
    /// Everything about an object is gone.
    pub fn is_gone(&self, ino: u64) -> bool {
        let tree = self.fs.mount().store().forest().require(TreeId::FS).unwrap();
        let from = Key::new(ObjectId(ino), KeyType(0), 0);
        let to = Key::new(ObjectId(ino), KeyType(u8::MAX), u64::MAX);
        tree.cursor(from, to).next().unwrap().is_none()
    }
    /// The way back from an inode says the same as the directory, for every name below a directory.
    pub fn assert_names_agree(&self, path: &str) {
        let dir_ino = self.attr(path).unwrap().ino;
        let by_hash: usize = self
            .items(dir_ino, KeyType::DIR_ITEM)
            .iter()
            .map(|(_, item)| btrfs_format::view::dir_entries(item).count())
            .sum();
        let names = self.names(path);
        assert_eq!(by_hash, names.len(), "{path}: names by hash and by index");
        let bytes: u64 = names.iter().map(|n| n.len() as u64).sum();
        assert_eq!(self.attr(path).unwrap().size_bytes, 2 * bytes, "{path}: size");
        let tree = self.fs.mount().store().forest().require(TreeId::FS).unwrap();
        for name in names {
            let found = dir::names::find(&tree, ObjectId(dir_ino), name.as_bytes()).unwrap();
            assert!(found.is_some(), "{path}/{name} is found by hash");
        }
    }
}
