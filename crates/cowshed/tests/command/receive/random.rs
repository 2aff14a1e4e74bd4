//! Random changes between snapshots: names that move, trade places and come back, contents that are
//! written, shared, punched and cut.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};

use cowshed_harness::progs::CheckOptions;
use cowshed_harness::tree::snapshot;
use cowshed_harness::{KernelVolume, VolumeOptions, clone_range, need};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags, fallocate, renameat_with, setxattr};

use super::{WAYS, btrfs, can_receive, receive, receive_by, sent};
use crate::extents::Dice;
use crate::mount::{Guard, unmount};
use crate::support::run;

pub const ROUNDS: usize = 6;
pub const CHANGES: usize = 200;
const BLOCK_BYTES: u64 = 4096;

/// Changes a tree. Calls that make no sense fail, and that is all.
pub struct Changer {
    pub dice: Dice,
    pub root: PathBuf,
}

impl Changer {
    /// One of few names, in a directory that is there.
    fn path(&mut self) -> PathBuf {
        let mut path = self.root.clone();
        loop {
            path.push(format!("n{}", self.dice.below(6)));
            let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            if !is_dir || self.dice.below(3) == 0 {
                return path;
            }
        }
    }

    /// A regular file, if one is found.
    fn file(&mut self) -> io::Result<File> {
        const TRIES: usize = 20;
        let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.is_file());
        let found = (0..TRIES).map(|_| self.path()).find(is_file);
        let path = found.ok_or(io::ErrorKind::NotFound)?;
        File::options().read(true).write(true).open(path)
    }

    fn write(&mut self, file: &File) -> io::Result<()> {
        let (at, len) = (self.dice.below(300_000), 1 + self.dice.below(200_000));
        let byte = self.dice.below(256) as u8;
        let data: Vec<u8> = match self.dice.below(2) {
            0 => vec![byte; len as usize],
            _ => (0..len).map(|_| self.dice.below(256) as u8).collect(),
        };
        file.write_all_at(&data, at)
    }

    pub fn change(&mut self) -> io::Result<()> {
        let (path, other) = (self.path(), self.path());
        let range = |dice: &mut Dice| (dice.below(60) * BLOCK_BYTES, (1 + dice.below(20)) * BLOCK_BYTES);
        match self.dice.below(17) {
            0 | 1 => fs::create_dir(path),
            2 | 3 => {
                let file = File::create_new(path)?;
                self.write(&file)
            }
            4 => symlink(other, path),
            5 | 6 => fs::rename(path, other),
            7 => Ok(renameat_with(CWD, path, CWD, other, RenameFlags::EXCHANGE)?),
            8 => fs::hard_link(path, other),
            9 => fs::remove_file(path),
            10 => match self.dice.below(3) {
                0 => fs::remove_dir_all(path),
                _ => fs::remove_dir(path),
            },
            11 => {
                let file = self.file()?;
                self.write(&file)
            }
            12 => {
                let (from, to) = (self.file()?, self.file()?);
                let ((at, len), (offset, _)) = (range(&mut self.dice), range(&mut self.dice));
                clone_range(&from, at, &to, offset, len)
            }
            13 => self.file()?.set_len(self.dice.below(400_000)),
            14 => {
                let (at, len) = range(&mut self.dice);
                let keep = FallocateFlags::KEEP_SIZE;
                let how = [FallocateFlags::PUNCH_HOLE | keep, keep][self.dice.below(2) as usize];
                Ok(fallocate(self.file()?, how, at, len)?)
            }
            15 => {
                let name = format!("user.a{}", self.dice.below(3));
                match self.dice.below(3) {
                    0 => Ok(rustix::fs::removexattr(path, name)?),
                    n => Ok(setxattr(path, name, &vec![7; n as usize * 50], XattrFlags::empty())?),
                }
            }
            _ => {
                let (user, group) = (self.dice.below(5) as u32, self.dice.below(5) as u32);
                std::os::unix::fs::lchown(path, Some(user), Some(group))
            }
        }
    }
}

/// Makes snapshots and sends them: the first one whole, the others as changes.
fn send_all(root: &Path, streams: &Path, seed: u64) -> anyhow::Result<Vec<cowshed_harness::tree::Tree>> {
    btrfs(root, "subvolume create s");
    let mut changer = Changer {
        dice: Dice(seed),
        root: root.join("s"),
    };
    let mut trees = Vec::new();
    for round in 0..=ROUNDS {
        let done = (0..CHANGES).filter(|_| changer.change().is_ok()).count();
        assert!(done > CHANGES / 4, "{done} changes");
        btrfs(root, &format!("subvolume snapshot -r s s{round}"));
        trees.push(snapshot(&root.join(format!("s{round}")))?);
        let parent = match round {
            0 => String::new(),
            _ => format!("-p s{} ", round - 1),
        };
        for (way, how) in WAYS {
            let stream = streams.join(format!("s{round}.{way}"));
            btrfs(root, &format!("send -q {how} {parent}s{round} -f {}", stream.display()));
        }
    }
    Ok(trees)
}

fn random_changes(seed: u64) {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let [streams, mnt] = ["streams", "mnt"].map(|name| dir.path().join(name));
    fs::create_dir_all(&streams).unwrap();
    fs::create_dir_all(&mnt).unwrap();
    let volume = KernelVolume::make(&VolumeOptions {
        mount_options: "compress=lzo",
        ..VolumeOptions::default()
    });
    let sending = volume.unwrap();
    let trees = sending.with_mount(|root| send_all(root, &streams, seed)).unwrap();
    drop(sending);
    let target = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let fill = |root: &Path| {
        for round in 0..ROUNDS {
            btrfs(root, &format!("receive -q -f {}/s{round}.v1 .", streams.display()));
        }
        Ok(())
    };
    target.with_mount(fill).unwrap();
    let _guard = Guard(&mnt);
    run("mount {} {}", &[target.image(), &mnt]).ok();
    for (way, _) in WAYS {
        fs::create_dir(mnt.join(way)).unwrap();
        for round in 0..=ROUNDS {
            let stream = streams.join(format!("s{round}.{way}"));
            receive_by(round % 2 == 1, &stream, &mnt.join(way), &mnt).ok();
        }
    }
    fs::create_dir(mnt.join("image")).unwrap();
    unmount(&mnt);
    // The same without a mount.
    let image = PathBuf::from(format!("{}:/image", target.image().display()));
    for round in 0..=ROUNDS {
        receive(&streams.join(format!("s{round}.packed")), &image).ok();
    }
    target.check(CheckOptions::default()).unwrap().assert_clean();
    run("check --check-data-csum {}", &[target.image()]).ok();
    let judge = |root: &Path| {
        for way in WAYS.iter().map(|(way, _)| *way).chain(["image"]) {
            for (round, tree) in trees.iter().enumerate() {
                let received = snapshot(&root.join(way).join(format!("s{round}")))?;
                let differences = tree.diff(&received, &sent());
                assert!(differences.is_empty(), "seed {seed}, {way}, s{round}: {differences}");
            }
        }
        Ok(())
    };
    target.with_mount(judge).unwrap();
}

/// `COWSHED_SEEDS=100..140` selects other seeds, and more of them.
#[test]
fn random_changes_of_the_kernel_are_received() {
    let Some(()) = can_receive() else { return };
    let seeds = std::env::var("COWSHED_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let share = need::share_seed("random changes to receive");
    for seed in seeds.unwrap_or(share..share + 2) {
        random_changes(seed);
    }
}
