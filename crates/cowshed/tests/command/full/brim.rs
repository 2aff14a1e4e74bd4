//! A mounted volume without room, and what its files must hold: through the page cache, around it,
//! and from disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Error};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelVolume, abort_atomic_write, commit_atomic_write, start_atomic_write};
use rustix::fs::{Advice, FallocateFlags as Flags, OFlags, XattrFlags, copy_file_range, fadvise, fallocate, setxattr};

use crate::mount::unmount;
use crate::support::{Scratch, cowshed, run};

pub const BLOCK: usize = 4096;
/// Larger than any file of the tests.
const FILE_BYTES_MAX: usize = 4 << 20;

/// How a volume is made, mounted and filled.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub mkfs: &'static str,
    pub options: &'static str,
    /// With names, too, so that there is no room for metadata.
    pub names: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Buffered,
    Direct,
}

/// Bytes that belong to a seed: some of them shrink, some do not.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = crate::extents::Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        let word = dice.below(1 << 30);
        match bytes.len() / 16384 % 3 {
            0 => bytes.extend(word.to_le_bytes()[..3].iter()),
            1 => bytes.extend(format!("{seed} and {}, ", word % 50).as_bytes()),
            _ => bytes.extend([b'a' + (word % 26) as u8; 64]),
        }
    }
    bytes.truncate(len);
    bytes
}

/// A volume of which nothing is free but what [`Brim::make_room`] gives back.
pub struct Brim {
    row: Row,
    scratch: Scratch,
    pub mnt: PathBuf,
    ballast: Option<File>,
    ballast_bytes: u64,
    crumbs: Vec<PathBuf>,
    model: BTreeMap<&'static str, Vec<u8>>,
    /// Open all the time: what Linux has cached of a file stays.
    open: BTreeMap<&'static str, File>,
    buffer: Aligned,
}

/// A buffer of which a part is aligned as O_DIRECT wants it.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }
    fn part(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

pub fn is_no_space(error: &Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

pub fn no_space() -> Error {
    io::ErrorKind::StorageFull.into()
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    bytes[at..at + new.len()].copy_from_slice(new);
}

impl Brim {
    pub fn new(row: Row) -> Brim {
        let dir = cowshed_harness::scratch_dir().unwrap();
        let image = dir.path().join("volume.img");
        let scratch = Scratch { dir, image };
        run(&format!("mkfs -q -b 128m {} {{}}", row.mkfs), &[&scratch.image]).ok();
        let mnt = scratch.mountpoint();
        let mut brim = Brim {
            row,
            scratch,
            mnt,
            ballast: None,
            ballast_bytes: 0,
            crumbs: Vec::new(),
            model: BTreeMap::new(),
            open: BTreeMap::new(),
            buffer: Aligned::new(FILE_BYTES_MAX),
        };
        brim.mount();
        brim
    }

    fn mount(&mut self) {
        let line = match self.row.options {
            "" => "mount -o commit=300 {} {}".to_owned(),
            options => format!("mount -o commit=300,{options} {{}} {{}}"),
        };
        run(&line, &[&self.scratch.image, &self.mnt]).ok();
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        self.ballast = Some(options.open(self.mnt.join("ballast")).unwrap());
        let names: Vec<_> = self.model.keys().copied().collect();
        for name in names {
            self.open.insert(name, File::open(self.path(name)).unwrap());
        }
    }

    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    fn unmount(&mut self) {
        self.ballast = None;
        self.open.clear();
        unmount(&self.mnt);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mnt.join(name)
    }

    pub fn model(&self, name: &str) -> &[u8] {
        &self.model[name]
    }

    /// What a file is to hold from now on.
    pub fn expect(&mut self, name: &'static str, bytes: Vec<u8>) {
        assert!(bytes.len() <= FILE_BYTES_MAX);
        self.model.insert(name, bytes);
        let path = self.path(name);
        self.open.entry(name).or_insert_with(|| File::open(path).unwrap());
    }

    pub fn forget(&mut self, name: &str) {
        self.model.remove(name);
        self.open.remove(name);
    }

    /// Takes all space that is left.
    pub fn fill(&mut self) {
        let ballast = self.ballast.as_ref().unwrap();
        for step in [16 << 20, 1 << 20, 64 << 10, BLOCK as u64] {
            loop {
                match fallocate(ballast, Flags::empty(), self.ballast_bytes, step) {
                    Ok(()) => self.ballast_bytes += step,
                    Err(rustix::io::Errno::NOSPC) => break,
                    Err(other) => panic!("filling: {other}"),
                }
            }
        }
        while self.row.names {
            let crumb = self.mnt.join(format!("crumb{}", self.crumbs.len()));
            let made = File::create(&crumb);
            if let Err(error) = &made {
                assert!(is_no_space(error), "{error}");
                break;
            }
            self.crumbs.push(crumb.clone());
            match setxattr(&crumb, "user.fat", &[1; 3500], XattrFlags::empty()) {
                Ok(()) => {}
                Err(rustix::io::Errno::NOSPC) => break,
                Err(other) => panic!("filling with names: {other}"),
            }
        }
    }

    /// Gives so many blocks back, and as many names: for that there is always room.
    pub fn make_room(&mut self, blocks: u64) {
        self.ballast_bytes -= (blocks * BLOCK as u64).min(self.ballast_bytes);
        let cut = self.ballast.as_ref().unwrap().set_len(self.ballast_bytes);
        cut.unwrap_or_else(|e| panic!("{:?}: the ballast cannot be cut: {e}", self.row));
        for _ in 0..blocks {
            if let Some(crumb) = self.crumbs.pop() {
                fs::remove_file(&crumb).unwrap_or_else(|e| panic!("{:?}: a name cannot go: {e}", self.row));
            }
        }
    }

    fn open_as(&self, name: &str, how: How) -> File {
        let mut options = File::options();
        options.read(true).write(true);
        if how == How::Direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        options.open(self.path(name)).unwrap()
    }

    /// Writes; the model holds what was taken, whatever came after it.
    pub fn write(&mut self, name: &'static str, how: How, at: usize, data: &[u8]) -> io::Result<()> {
        let file = self.open_as(name, how);
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let written = match how {
                How::Buffered => file.write_at(rest, (at + done) as u64)?,
                How::Direct => {
                    let part = self.buffer.part(rest.len());
                    part.copy_from_slice(rest);
                    file.write_at(part, (at + done) as u64)?
                }
            };
            put(self.model.get_mut(name).unwrap(), at + done, &rest[..written]);
            done += written;
        }
        Ok(())
    }

    /// Writes in an atomic group: all of it is there afterwards, or nothing.
    pub fn write_group(&mut self, name: &'static str, writes: &[(usize, Vec<u8>)], commit: bool) -> io::Result<()> {
        let file = self.open_as(name, How::Buffered);
        start_atomic_write(&file)?;
        let stage = || -> io::Result<()> {
            for (at, data) in writes {
                file.write_all_at(data, *at as u64)?;
            }
            Ok(())
        };
        let staged = stage();
        if staged.is_err() || !commit {
            abort_atomic_write(&file).expect("a group can be given up");
            return staged;
        }
        commit_atomic_write(&file)?;
        let bytes = self.model.get_mut(name).unwrap();
        writes.iter().for_each(|(at, data)| put(bytes, *at, data));
        Ok(())
    }

    pub fn fallocate(&mut self, name: &'static str, mode: Flags, at: usize, len: usize) -> io::Result<()> {
        fallocate(self.open_as(name, How::Buffered), mode, at as u64, len as u64)?;
        let bytes = self.model.get_mut(name).unwrap();
        if mode.intersects(Flags::PUNCH_HOLE | Flags::ZERO_RANGE) {
            let end = (at + len).min(bytes.len());
            bytes[at.min(end)..end].fill(0);
        }
        if !mode.contains(Flags::KEEP_SIZE) && bytes.len() < at + len {
            bytes.resize(at + len, 0);
        }
        Ok(())
    }

    pub fn set_len(&mut self, name: &'static str, size: usize) -> io::Result<()> {
        self.open_as(name, How::Buffered).set_len(size as u64)?;
        self.model.get_mut(name).unwrap().resize(size, 0);
        Ok(())
    }

    /// copy_file_range, until all is done; the model holds what it said it did.
    pub fn copy(&mut self, src: &str, from: usize, dst: &'static str, to: usize, len: usize) -> io::Result<()> {
        let files = [src, dst].map(|name| self.open_as(name, How::Buffered));
        let (mut at, mut target) = (from as u64, to as u64);
        while at < (from + len) as u64 {
            let rest = from + len - at as usize;
            let (start, goal) = (at as usize, target as usize);
            let done = copy_file_range(&files[0], Some(&mut at), &files[1], Some(&mut target), rest)?;
            assert!(done > 0, "a copy from {start} of {src} stops");
            let bytes = self.model[src][start..start + done].to_vec();
            put(self.model.get_mut(dst).unwrap(), goal, &bytes);
        }
        Ok(())
    }

    /// The command, with words that name files by `@`; it succeeds, or there was no space.
    pub fn command(&self, line: &str) -> io::Result<()> {
        let words = line.split(' ').map(|word| match word.strip_prefix('@') {
            Some(name) => self.path(name).into_os_string(),
            None => word.into(),
        });
        let ran = cowshed(words);
        match ran.code {
            0 => Ok(()),
            _ if ran.err.contains("No space left on device") && !ran.err.contains("panicked") => Err(no_space()),
            _ => panic!("{line}: {ran:?}"),
        }
    }

    /// A call in steps, which found no space: the file holds what was there, its beginning what was
    /// to come, in whole blocks.
    pub fn expect_begun(&mut self, name: &'static str, new: &[u8]) {
        let seen = self.read_direct(name);
        let old = &self.model[name];
        let same = seen.iter().zip(new).take_while(|(a, b)| a == b).count();
        let begun = same - same % BLOCK;
        assert!(
            seen.len() == old.len().max(begun) && seen[begun..] == old[begun.min(old.len())..],
            "{name}: {begun} bytes of the new content, and then not the old one"
        );
        self.model.insert(name, seen);
    }

    fn read_direct(&mut self, name: &str) -> Vec<u8> {
        let file = self.open_as(name, How::Direct);
        let part = self.buffer.part(FILE_BYTES_MAX);
        let mut done = 0;
        loop {
            let got = file.read_at(&mut part[done..], done as u64).unwrap();
            done += got;
            if got == 0 || !done.is_multiple_of(BLOCK) {
                return part[..done].to_vec();
            }
        }
    }

    fn read_open(&self, name: &str) -> Vec<u8> {
        let file = &self.open[name];
        let mut bytes = vec![0; FILE_BYTES_MAX];
        let mut done = 0;
        loop {
            match file.read_at(&mut bytes[done..], done as u64).unwrap() {
                0 => break,
                got => done += got,
            }
        }
        bytes.truncate(done);
        bytes
    }

    #[track_caller]
    fn same(&self, name: &str, how: &str, seen: &[u8], when: &str) {
        let wanted = &self.model[name];
        if seen == &wanted[..] {
            return;
        }
        let at = seen.iter().zip(wanted).position(|(a, b)| a != b);
        let wrong = seen.iter().zip(wanted).filter(|(a, b)| a != b).count();
        panic!(
            "{:?}, {when}: {name}, {how}: {} bytes, not {}; the first of {wrong} that differ is at {at:?}",
            self.row,
            seen.len(),
            wanted.len()
        );
    }

    /// The files hold what they must: what Linux has of them, and what we have.
    #[track_caller]
    pub fn verify(&mut self, names: &[&'static str], when: &str) {
        for name in names {
            if !self.model.contains_key(name) {
                continue;
            }
            let cached = self.read_open(name);
            self.same(name, "cached", &cached, when);
            let direct = self.read_direct(name);
            self.same(name, "direct", &direct, when);
            let size = fs::metadata(self.path(name)).unwrap().len();
            assert_eq!(
                size,
                self.model[name].len() as u64,
                "{:?}, {when}: the size of {name}",
                self.row
            );
        }
    }

    /// What was taken can be made durable, and comes back from disk.
    #[track_caller]
    pub fn settle(&mut self, names: &[&'static str], when: &str) {
        for name in names {
            if let Some(file) = self.open.get(name) {
                file.sync_all()
                    .unwrap_or_else(|e| panic!("{:?}, {when}: what was taken of {name} cannot be kept: {e}", self.row));
                fadvise(file, 0, None, Advice::DontNeed).unwrap();
            }
        }
        self.verify(names, when);
    }

    /// A power failure now would leave the files that are settled as they are.
    #[track_caller]
    pub fn verify_synced(&self, names: &[&'static str], when: &str) {
        let crashed = self.scratch.path("crashed");
        let paths = [self.scratch.image.as_os_str(), crashed.as_os_str()];
        cowshed_harness::run("cp", &["--sparse=always".as_ref(), paths[0], paths[1]]).unwrap();
        for name in names.iter().filter(|name| self.model.contains_key(*name)) {
            let seen = run(&format!("cat {{}} {name}"), &[&crashed]).ok().out;
            self.same(name, "after a power failure", &seen, when);
        }
    }

    #[track_caller]
    pub fn verify_all(&mut self, when: &str) {
        let names: Vec<_> = self.model.keys().copied().collect();
        self.verify(&names, when);
    }

    /// The end: after a remount, by both checkers and by the kernel.
    pub fn finish(mut self) {
        self.verify_all("at the end");
        self.remount();
        self.verify_all("mounted anew");
        self.unmount();
        self.scratch.assert_clean();
        let volume = KernelVolume::copy_of(&[&self.scratch.image]).unwrap();
        volume.assert_clean();
        let mounted = volume.mount_with("ro").unwrap();
        self.read_by_kernel(mounted.dir());
        mounted.unmount_quietly().unwrap();
    }

    fn read_by_kernel(&self, dir: &Path) {
        for name in self.model.keys() {
            self.same(name, "by the kernel", &fs::read(dir.join(name)).unwrap(), "at the end");
        }
    }
}
