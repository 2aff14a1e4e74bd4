//! Random operations of one thread. Each may fail because of what the others do.

mod attributes;
mod data;
mod entries;
mod looks;
mod trees;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cowshed_device_sim::Rng;
use rustix::fs::OFlags;

use crate::held::Held;
use crate::names;

/// Descriptors that a thread keeps open, over the ends of rounds, too.
const HELD_MAX: usize = 6;
/// Longest file.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// What a thread acts with.
pub struct Actor {
    /// The pool's root, as this thread's mount shows it.
    root: PathBuf,
    /// The command under test.
    cowshed: PathBuf,
    pub rng: Rng,
    pub held: Vec<Held>,
    /// The byte that this thread writes next: each write has another one.
    fill: u8,
}

type Act = fn(&mut Actor, &mut String) -> io::Result<()>;

/// How often, and what.
const MIX: [(u64, Act); 39] = [
    (18, data::create),
    (10, data::write),
    (6, data::append),
    (4, data::direct),
    (7, data::store),
    (3, data::load),
    (5, data::read),
    (5, data::truncate),
    (6, data::allocate),
    (4, data::copy),
    (3, data::fsync),
    (12, entries::rename),
    (4, entries::exchange),
    (4, entries::no_replace),
    (1, entries::whiteout),
    (6, entries::rename_dir),
    (12, entries::link),
    (12, entries::unlink),
    (8, entries::mkdir),
    (6, entries::rmdir),
    (4, entries::symlink),
    (4, entries::link_unnamed),
    (1, entries::unlink_all),
    (6, attributes::chmod),
    (3, attributes::chown),
    (3, attributes::utimens),
    (4, attributes::set_xattr),
    (3, attributes::remove_xattr),
    (4, attributes::set_acl),
    (2, attributes::flags),
    (10, looks::stat),
    (12, looks::stat_pool),
    (6, looks::list),
    (8, looks::list_and_stat),
    (6, looks::hold),
    (4, looks::release),
    (7, trees::subvolume),
    (2, trees::by_command),
    (1, trees::sync),
];

impl Actor {
    pub fn new(root: &Path, cowshed: &Path, seed: u64) -> Actor {
        Actor {
            root: root.into(),
            cowshed: cowshed.into(),
            rng: Rng::new(seed),
            held: Vec::new(),
            fill: 0,
        }
    }

    /// One operation: what it is, with the paths as words of their own, and how it ended.
    pub fn step(&mut self) -> (String, io::Result<()>) {
        let all: u64 = MIX.iter().map(|(weight, _)| weight).sum();
        let mut left = self.rng.below(all);
        let (_, act) = MIX
            .iter()
            .find(|(weight, _)| match left.checked_sub(*weight) {
                Some(less) => {
                    left = less;
                    false
                }
                None => true,
            })
            .expect("less than the sum of all");
        let mut told = String::new();
        let done = act(self, &mut told);
        (told, done)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn open_with(&self, path: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::from_raw_mode(mode);
        Ok(rustix::fs::open(self.path(path), flags, mode)?.into())
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<File> {
        self.open_with(path, flags, 0)
    }

    fn open_dir(&self, path: &str) -> io::Result<File> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A file to read and write: one of those that are held open, or one that is opened by name.
    fn file(&mut self, told: &mut String) -> io::Result<File> {
        let files: Vec<usize> = (0..self.held.len()).filter(|at| self.held[*at].is_writable).collect();
        if !files.is_empty() && self.rng.one_in(4) {
            let held = &self.held[files[self.rng.index(files.len())]];
            *told += &format!(" {}", held.label);
            return held.file.try_clone();
        }
        let path = names::file(&mut self.rng);
        *told += &format!(" {path}");
        self.open(&path, OFlags::RDWR)
    }

    /// Keeps a descriptor open.
    fn keep(&mut self, held: Held) {
        if self.held.len() == HELD_MAX {
            let at = self.rng.index(HELD_MAX);
            self.held.swap_remove(at);
        }
        self.held.push(held);
    }

    /// Bytes that tell this write from others.
    fn bytes(&mut self) -> Vec<u8> {
        self.fill = self.fill.wrapping_add(2) | 1;
        let len = [1, 10, 100, 2000, 4096, 5000, 12288, 20000][self.rng.index(8)];
        vec![self.fill; len]
    }

    /// A place within the longest file; one of two is at a page's border.
    fn offset(&mut self) -> u64 {
        let at = self.rng.below(FILE_BYTES_MAX - (20 << 10));
        match self.rng.one_in(2) {
            true => at & !4095,
            false => at,
        }
    }
}

/// A path that leads to an open file.
fn link_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Opens for reading, for what the standard library does not wait for.
fn to_read(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32)
        .open(path)
}
