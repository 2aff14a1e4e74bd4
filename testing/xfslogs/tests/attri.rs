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

#[test]
fn attris_in_a_row_make_and_take_three_levels_as_linux_does() {
    if is_able() {
        run_levels().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn run_levels() -> Result<()> {
    let (ours, linux) = (volume("-b size=1k")?, volume("-b size=1k")?);
    let make = |volume: &XfsVolume| {
        let ino = volume.with_mount(|root| {
            fs::write(root.join("file"), b"contents")?;
            Ok(fs::metadata(root.join("file"))?.ino())
        })?;
        Ok::<u64, anyhow::Error>(ino)
    };
    let ino = make(&ours)?;
    ensure!(make(&linux)? == ino, "the same inode");
    set_logged_attributes(ours.image())?;
    let mut rng = Rng::new(7);
    let all = names(&mut rng, 420);
    let mut changes: Vec<Change> = all.iter().map(|name| Change::set(name, &name[..10])).collect();
    let mut gone = all.clone();
    rng.shuffle(&mut gone);
    changes.extend(gone.iter().map(|name| Change::remove(name)));
    let mut expected = Attrs::new();
    let (mut deepest, mut log) = (0, Log::open(ours.image())?);
    let mut since = 0;
    for (at, change) in changes.iter().enumerate() {
        log.append(&[change.attri(ino).item(1)], |_| {})?;
        change.apply(&mut expected);
        let volume = recovered(ours.image())?;
        let found = stored(&volume, ino).with_context(|| format!("change {at}"))?;
        ensure!(found.attrs == expected, "change {at}: attributes");
        let report = judge(ours.image())?;
        ensure!(report.is_clean(), "change {at}: {report}");
        put_home(ours.image())?;
        deepest = deepest.max(found.levels);
        // Several intents of one inode are more than the kernel can finish: it does the first step
        // of each first. So it makes the changes, and finishes the last one.
        let is_stop = (at + 1) % 70 == 0 || at + 1 == changes.len();
        if is_stop {
            linux.with_mount(|root| {
                changes[since..at]
                    .iter()
                    .try_for_each(|change| call(&root.join("file"), change))
            })?;
            plant(linux.image(), ino, change)?;
            since = at + 1;
            let kernel = by_kernel(&linux, ino)?;
            found.compare(&kernel).with_context(|| format!("change {at}"))?;
        }
    }
    ensure!(deepest == 3, "{deepest} levels");
    Ok(())
}
