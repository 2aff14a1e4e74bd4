//! What a reader finds on a volume: inodes by number, with their names and contents.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cowshed_harness::KernelVolume;

/// One inode as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    pub mode: u32,
    pub nlink: u64,
    pub size: u64,
    /// Of regular files, in units of 512 bytes.
    pub blocks: u64,
    pub mtime: (i64, i64),
    /// Of regular files; the target of symbolic links.
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Directory and name.
    pub names: Vec<(u64, String)>,
    /// Of directories.
    pub entries: BTreeMap<String, u64>,
}

/// Bytes whose `Debug` is short.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content(pub Vec<u8>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut at = 0;
        for run in self.0.chunk_by(|a, b| a == b).take(40) {
            write!(f, "[{at}..{}: {}]", at + run.len(), run[0])?;
            at += run.len();
        }
        write!(f, " of {}", self.0.len())
    }
}

pub type Seen = BTreeMap<u64, Inode>;

/// The volume cut off now, as the kernel finds it after replaying its log. `btrfs check` must like
/// what is left.
pub fn after_crash(image: &Path) -> Seen {
    let cut = KernelVolume::copy_of(&[image]).expect("a copy of the image");
    let seen = cut
        .with_mount(|dir| {
            let mut seen = Seen::new();
            walk(dir, &mut seen);
            Ok(seen)
        })
        .expect("the kernel replays the log");
    cut.assert_clean();
    seen
}

fn walk(dir: &Path, seen: &mut Seen) {
    let ino = std::fs::metadata(dir).unwrap().ino();
    note(dir, seen);
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (name, path) = (entry.file_name().into_string().unwrap(), entry.path());
        let child = note(&path, seen);
        seen.get_mut(&child).unwrap().names.push((ino, name.clone()));
        seen.get_mut(&ino).unwrap().entries.insert(name, child);
        if entry.file_type().unwrap().is_dir() {
            walk(&path, seen);
        }
    }
}

fn note(path: &Path, seen: &mut Seen) -> u64 {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let inode = seen.entry(meta.ino()).or_default();
    inode.mode = meta.mode();
    inode.nlink = meta.nlink();
    inode.size = meta.size();
    inode.mtime = (meta.mtime(), meta.mtime_nsec());
    if meta.is_file() {
        inode.blocks = meta.blocks();
        inode.content = Content(std::fs::read(path).unwrap());
    } else if meta.is_symlink() {
        let target = std::fs::read_link(path).unwrap();
        inode.content = Content(target.into_os_string().into_encoded_bytes());
    }
    if !meta.is_symlink() {
        inode.xattrs = xattrs(path);
    }
    meta.ino()
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let args = ["--absolute-names", "-d", "-e", "hex"].map(OsStr::new);
    let args: Vec<&OsStr> = args.into_iter().chain([path.as_os_str()]).collect();
    let text = cowshed_harness::run("getfattr", &args).unwrap();
    let pairs = text
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('='));
    pairs.map(|(name, value)| (name.into(), value.into())).collect()
}
