//! Unfinished changes of attributes (ATTRI) that were planted: trees of several levels, values with
//! blocks of their own, inodes without room. The kernel finishes the same ones on a copy.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use common::{Attrs, Stored, judge, recovered, stored};
use cowshed_device_sim::Rng;
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_harness::run_raw;
use cowshed_xfslogs::is_able;
use rustix::fs::XattrFlags;
use cowshed_xfslogs::plant::{Attri, Log, attri_op, set_logged_attributes};

fn volume(mkfs: &str) -> Result<XfsVolume> {
    XfsVolume::make(&XfsOptions {
        size_bytes: 320 << 20,
        ..XfsOptions::new(mkfs)
    })
}

/// A planned change of one attribute.
#[derive(Clone, Debug)]
struct Change {
    op: u32,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Change {
    fn set(name: &[u8], value: &[u8]) -> Self {
        Self {
            op: attri_op::SET,
            name: name.to_vec(),
            value: value.to_vec(),
        }
    }
    fn replace(name: &[u8], value: &[u8]) -> Self {
        Self {
            op: attri_op::REPLACE,
            ..Self::set(name, value)
        }
    }
    fn remove(name: &[u8]) -> Self {
        Self {
            op: attri_op::REMOVE,
            name: name.to_vec(),
            value: Vec::new(),
        }
    }
    fn attri(&self, ino: u64) -> Attri<'_> {
        Attri {
            ino: (ino, 0),
            op: self.op,
            name: &self.name,
            value: &self.value,
            ..Attri::default()
        }
    }
    fn apply(&self, attrs: &mut Attrs) {
        let key = (0, self.name.clone());
        if self.op == attri_op::REMOVE {
            attrs.remove(&key);
        } else {
            attrs.insert(key, self.value.clone());
        }
    }
}

/// Appends a change to the clean log of an image.
fn plant(image: &Path, ino: u64, change: &Change) -> Result<()> {
    set_logged_attributes(image)?;
    Log::open(image)?.append(&[change.attri(ino).item(1)], |_| {})?;
    Ok(())
}

/// Changes a file's attributes by system calls.
fn call(path: &Path, change: &Change) -> Result<()> {
    let name = [b"user.".as_slice(), &change.name].concat();
    if change.op == attri_op::REMOVE {
        rustix::fs::lremovexattr(path, &name[..])?;
    } else {
        rustix::fs::lsetxattr(path, &name[..], &change.value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Writes what our recovery changed to the image.
fn put_home(image: &Path) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(image)?;
    let volume = recovered(image)?;
    for (at, page) in volume.recovery().context("a recovery")?.pages() {
        file.write_all_at(page, at)?;
    }
    Ok(())
}

fn repair(image: &Path) -> Result<()> {
    let output = run_raw("xfs_repair", &["-n".as_ref(), image.as_os_str()])?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// What the kernel makes of the same log: it is mounted, and stays recovered.
fn by_kernel(volume: &XfsVolume, ino: u64) -> Result<Stored> {
    volume.with_mount(|_| Ok(())).context("the kernel's recovery")?;
    let clean = recovered(volume.image())?;
    ensure!(clean.recovery().is_none(), "the kernel left a dirty log");
    let report = judge(volume.image())?;
    ensure!(report.is_clean(), "{report}");
    repair(volume.image())?;
    stored(&clean, ino)
}

/// Attributes of a file whose tree gets three levels. Names are long, so that leaves hold few.
fn names(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let mut names = BTreeSet::new();
    while names.len() < count {
        let len = 120 + rng.index(131);
        names.insert((0..len).map(|_| b'a' + rng.index(26) as u8).collect());
    }
    let mut names: Vec<Vec<u8>> = names.into_iter().collect();
    rng.shuffle(&mut names);
    names
}

/// The same file on two volumes: on one of them we finish intents, on the other one the kernel does.
struct Twins {
    ours: XfsVolume,
    linux: XfsVolume,
    ino: u64,
    expected: Attrs,
}

impl Twins {
    fn make(mkfs: &str) -> Result<Twins> {
        let one = || -> Result<(XfsVolume, u64)> {
            let volume = volume(mkfs)?;
            let ino = volume.with_mount(|root| {
                fs::write(root.join("file"), b"contents")?;
                Ok(fs::metadata(root.join("file"))?.ino())
            })?;
            Ok((volume, ino))
        };
        let ((ours, ino), (linux, other)) = (one()?, one()?);
        ensure!(ino == other, "the same inode");
        Ok(Twins {
            ours,
            linux,
            ino,
            expected: Attrs::new(),
        })
    }

    /// We finish a change.
    fn change(&mut self, change: &Change) -> Result<Stored> {
        plant(self.ours.image(), self.ino, change)?;
        change.apply(&mut self.expected);
        let found = stored(&recovered(self.ours.image())?, self.ino)?;
        ensure!(found.attrs == self.expected, "attributes");
        let report = judge(self.ours.image())?;
        ensure!(report.is_clean(), "{report}");
        put_home(self.ours.image())?;
        Ok(found)
    }

    /// The kernel finishes it, behind others that programs made.
    fn compare(&self, found: &Stored, before: &[Change], change: &Change) -> Result<()> {
        if !before.is_empty() {
            self.linux.with_mount(|root| {
                let file = root.join("file");
                before.iter().try_for_each(|change| call(&file, change))
            })?;
        }
        // Linux does not log an intent for an inode without room, and makes none when it finishes
        // one: the attribute would be lost.
        if stored(&recovered(self.linux.image())?, self.ino)?.forkoff == 0 {
            self.linux.with_mount(|root| call(&root.join("file"), change))?;
        } else {
            plant(self.linux.image(), self.ino, change)?;
        }
        found.compare(&by_kernel(&self.linux, self.ino)?)
    }
}

#[test]
fn attris_in_a_row_make_and_take_three_levels_as_linux_does() {
    if is_able() {
        run_levels().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn run_levels() -> Result<()> {
    let mut twins = Twins::make("-b size=1k")?;
    let mut rng = Rng::new(7);
    let mut all = names(&mut rng, 420);
    let mut changes: Vec<Change> = all.iter().map(|name| Change::set(name, &name[..10])).collect();
    rng.shuffle(&mut all);
    changes.extend(all.iter().map(|name| Change::remove(name)));
    let (mut deepest, mut since) = (0, 0);
    for (at, change) in changes.iter().enumerate() {
        let found = twins.change(change).with_context(|| format!("change {at}"))?;
        deepest = deepest.max(found.levels);
        // Several intents of one inode are more than the kernel can finish: it does the first step
        // of each first. So programs make the changes, and it finishes the last one.
        if (at + 1) % 70 == 0 || at + 1 == changes.len() {
            let compared = twins.compare(&found, &changes[since..at], change);
            compared.with_context(|| format!("change {at}"))?;
            since = at + 1;
        }
    }
    ensure!(deepest == 3, "{deepest} levels");
    Ok(())
}

#[test]
fn attris_give_and_take_values_with_blocks_as_linux_does() {
    if !is_able() {
        return;
    }
    for (mkfs, seed) in [("", 1), ("-b size=1k", 2)] {
        run_values(mkfs, seed).unwrap_or_else(|error| panic!("{mkfs} seed {seed}: {error:#}"));
    }
}

/// Values of all sizes: in the inode, beside their names, in blocks of their own.
fn run_values(mkfs: &str, seed: u64) -> Result<()> {
    let mut twins = Twins::make(mkfs)?;
    let mut rng = Rng::new(seed);
    let block = if mkfs.is_empty() { 4096 } else { 1024 };
    let limit = block / 4 * 3;
    let sizes = [0, 1, 30, 254, 255, 256, 300, limit - 8, limit - 7, limit - 6, limit, block, 20_000, 65_536];
    let mut value = |rng: &mut Rng, size: usize| {
        let mut value = vec![0; size];
        rng.fill(&mut value);
        value
    };
    // One after the other, for the limits.
    let mut changes = Vec::new();
    for size in sizes.into_iter().chain(limit - 12..limit + 4) {
        changes.push(Change::set(b"abc", &value(&mut rng, size)));
    }
    changes.push(Change::remove(b"abc"));
    // Many at once, so that leaves are split in two and three.
    for _ in 0..90 {
        let name = format!("name_{}", rng.below(14));
        let size = [sizes[rng.index(sizes.len())], limit - 20 - rng.index(limit / 2)][rng.index(2)];
        changes.push(match rng.below(4) {
            0 => Change::remove(name.as_bytes()),
            1 => Change::replace(name.as_bytes(), &value(&mut rng, size)),
            _ => Change::set(name.as_bytes(), &value(&mut rng, size)),
        });
    }
    changes.extend((0..14).map(|number| Change::remove(format!("name_{number}").as_bytes())));
    for (at, change) in changes.iter().enumerate() {
        let what = || format!("change {at}: {} with {} bytes", change.op, change.value.len());
        if change.op == attri_op::REMOVE && !twins.expected.contains_key(&(0, change.name.clone())) {
            continue;
        }
        let found = twins.change(change).with_context(what)?;
        twins.compare(&found, &[], change).with_context(what)?;
    }
    ensure!(twins.expected.is_empty(), "nothing is left");
    Ok(())
}
