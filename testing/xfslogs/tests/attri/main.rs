//! Unfinished changes of attributes (ATTRI) that were planted: trees of several levels, values with
//! blocks of their own, inodes without room. The kernel finishes the same ones on a copy.

#[path = "../common/mod.rs"]
mod common;
mod parents;
mod room;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use common::{Attrs, Stored, judge, recovered, stored};
use cowshed_device_sim::Rng;
use cowshed_harness::run_raw;
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_xfs::Volume;
use cowshed_xfslogs::is_able;
use cowshed_xfslogs::plant::{Attri, Log, attri_op, set_logged_attributes, set_new_bits};
use rustix::fs::XattrFlags;
use xfs_format::attr::{AttrLeafBlock, AttrNew, AttrValueView, attr_flags};
use xfs_format::da::{AttrNodeBlock, DaNodeEntry, name_hash};
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::{DaBlock, Expect, Extent, FsBlock, Ino, Inode, Lsn, U32};

fn volume(mkfs: &str) -> Result<XfsVolume> {
    XfsVolume::make(&XfsOptions {
        size_bytes: 320 << 20,
        ..XfsOptions::new(format!("--unsupported -l size=16m {mkfs}"))
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

/// The same file on two volumes: we finish intents on one of them, the kernel on the other one.
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
    let sizes = [
        0,
        1,
        30,
        254,
        255,
        256,
        300,
        limit - 8,
        limit - 7,
        limit - 6,
        limit,
        block,
        20_000,
        65_536,
    ];
    let value = |rng: &mut Rng, size: usize| {
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
    // A large one between two others, so that a leaf is split in three: one that is alone, and one
    // below a node.
    let mut names: Vec<String> = (0..14).map(|number| format!("name_{number}")).collect();
    names.sort_by_key(|name| name_hash(name.as_bytes()));
    for first in [2, 8] {
        for (slot, percent) in [(0, 44), (2, 44), (1, 73)] {
            let value = value(&mut rng, block * percent / 100);
            changes.push(Change::set(names[first + slot].as_bytes(), &value));
        }
    }
    // Many at once.
    for _ in 0..40 {
        let name = format!("name_{}", rng.below(14));
        let size = [sizes[rng.index(sizes.len())], limit - 20 - rng.index(limit / 2)][rng.index(2)];
        changes.push(match rng.below(4) {
            0 => Change::remove(name.as_bytes()),
            1 => Change::replace(name.as_bytes(), &value(&mut rng, size)),
            _ => Change::set(name.as_bytes(), &value(&mut rng, size)),
        });
    }
    changes.extend((0..14).map(|number| Change::remove(format!("name_{number}").as_bytes())));
    let (mut leaves, mut parts_max) = (0, 0);
    for (at, change) in changes.iter().enumerate() {
        let what = || format!("change {at}: {} with {} bytes", change.op, change.value.len());
        if change.op == attri_op::REMOVE && !twins.expected.contains_key(&(0, change.name.clone())) {
            continue;
        }
        let found = twins.change(change).with_context(what)?;
        twins.compare(&found, &[], change).with_context(what)?;
        let before = std::mem::replace(&mut leaves, found.tree.last().map_or(0, Vec::len));
        if before > 0 {
            parts_max = parts_max.max(1 + leaves.saturating_sub(before));
        }
    }
    ensure!(twins.expected.is_empty(), "nothing is left");
    ensure!(parts_max == 3, "leaves are split in {parts_max} at most");
    Ok(())
}

/// Changes a block of a file's attribute fork on a clean image.
fn edit(
    image: &Path,
    ino: u64,
    block: u64,
    change: impl FnOnce(Vec<u8>, &Expect<'_>, Lsn) -> Result<Vec<u8>>,
) -> Result<()> {
    const LSN_AT: usize = 24;
    let volume = recovered(image)?;
    let (geometry, device) = (volume.geometry(), volume.recovered_device());
    let extents = common::extents(&volume, &common::inode(&volume, ino)?, ino, ForkKind::Attr)?;
    let holds = |extent: &&Extent| (extent.offset.get()..extent.end().get()).contains(&block);
    let extent = extents.iter().find(holds).context("a block of the fork")?;
    let start = FsBlock(extent.start.get() + block - extent.offset.get());
    let daddr = geometry.daddr(start).context("an address")?;
    let mut bytes = vec![0; geometry.block_bytes as usize];
    device.read_at(daddr.get() * 512, &mut bytes)?;
    let expect = Expect::of_inode(geometry, daddr, Ino(ino));
    let lsn = u64::from_be_bytes(*bytes[LSN_AT..].first_chunk().context("an LSN")?);
    let bytes = change(bytes, &expect, Lsn(lsn))?;
    let file = fs::OpenOptions::new().write(true).open(image)?;
    Ok(file.write_all_at(&bytes, daddr.get() * 512)?)
}

/// Changes entries and siblings of a leaf.
fn edit_leaf(
    image: &Path,
    ino: u64,
    block: u64,
    change: impl FnOnce(&mut [AttrNew<'_>], &mut (DaBlock, DaBlock)),
) -> Result<()> {
    edit(image, ino, block, |bytes, expect, lsn| {
        let leaf = AttrLeafBlock::verify(bytes, expect)?;
        let mut siblings = leaf.siblings();
        let entries = leaf.entries().map(|entry| AttrNew {
            flags: entry.flags,
            name: entry.name,
            value: entry.value,
        });
        let mut entries: Vec<AttrNew<'_>> = entries.collect();
        change(&mut entries, &mut siblings);
        let bytes = AttrLeafBlock::build(&entries, siblings, expect).context("a leaf")?;
        Ok(AttrLeafBlock::seal(bytes, expect, lsn)?.bytes().to_vec())
    })
}

/// Marks an attribute of a file with one leaf as not finished. `has_blocks`: the name still says
/// where its value is.
fn interrupt(image: &Path, ino: u64, name: &[u8], has_blocks: bool) -> Result<()> {
    edit_leaf(image, ino, 0, |entries, _| {
        for entry in entries.iter_mut().filter(|entry| entry.name == name) {
            entry.flags |= attr_flags::INCOMPLETE;
            if let AttrValueView::Remote { block, .. } = &mut entry.value {
                block.0 = if has_blocks { block.0 } else { 0 };
            }
        }
    })
}

#[test]
fn attris_replace_and_remove_attributes_that_were_not_finished() {
    if is_able() {
        run_interrupted().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn run_interrupted() -> Result<()> {
    let all = [("small", 700), ("large", 9000), ("other", 700)]
        .map(|(name, size)| Change::set(name.as_bytes(), &vec![3; size]));
    let new = |name: &[u8], size| Change::replace(name, &vec![4; size]);
    let cases = [
        (&b"small"[..], false, new(b"small", 10)),
        (b"small", false, new(b"small", 9000)),
        (b"small", false, Change::remove(b"small")),
        (b"large", true, new(b"large", 10)),
        (b"large", true, new(b"large", 20_000)),
        (b"large", true, Change::remove(b"large")),
        // Blocks that no name leads to stay with the fork, on Linux, too.
        (b"large", false, new(b"large", 20_000)),
        (b"large", false, Change::remove(b"large")),
    ];
    for (name, has_blocks, change) in cases {
        let what = || format!("{} {} {}", name.escape_ascii(), has_blocks, change.op);
        let mut twins = Twins::make("")?;
        for one in &all {
            let found = twins.change(one)?;
            twins.compare(&found, &[], one)?;
        }
        // The kernel cleans our log, too.
        twins.ours.with_mount(|_| Ok(()))?;
        for image in [twins.ours.image(), twins.linux.image()] {
            interrupt(image, twins.ino, name, has_blocks)?;
        }
        let found = twins.change(&change).context("ours").with_context(what)?;
        twins.compare(&found, &[], &change).with_context(what)?;
    }
    Ok(())
}

#[test]
fn attris_of_damaged_trees_and_of_impossible_sizes_are_errors() {
    if is_able() {
        run_damaged().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn run_damaged() -> Result<()> {
    let mut twins = Twins::make("-b size=1k")?;
    let (image, ino) = (twins.ours.image().to_path_buf(), twins.ino);
    let mut all = names(&mut Rng::new(3), 24);
    for name in &all {
        twins.change(&Change::set(name, b"value"))?;
    }
    twins.ours.with_mount(|_| Ok(()))?;
    let tree = stored(&recovered(&image)?, ino)?;
    ensure!(tree.levels == 2 && tree.tree[1].len() > 5, "leaves below a node");
    all.sort_by_key(|name| name_hash(name));
    let clean = fs::read(&image)?;
    let error_of = |change: &Change| -> Result<String> {
        plant(&image, ino, change)?;
        Ok(format!("{:#}", recovered(&image).err().context("no error")?))
    };
    // Leaves are joined at some time.
    let error_of_removals = |names: &[Vec<u8>]| -> Result<String> {
        for name in names {
            plant(&image, ino, &Change::remove(name))?;
            match recovered(&image) {
                Ok(_) => put_home(&image)?,
                Err(error) => return Ok(format!("{error:#}")),
            }
        }
        Ok(String::new())
    };

    // Two children that are one block: what it says about its neighbours cannot be true.
    edit(&image, ino, 0, |bytes, expect, lsn| {
        let node = AttrNodeBlock::verify(bytes, expect)?;
        let mut entries = node.entries().to_vec();
        entries[1].before = entries[0].before;
        let bytes = AttrNodeBlock::build(1, &entries, node.siblings(), expect).context("a node")?;
        Ok(AttrNodeBlock::seal(bytes, expect, lsn)?.bytes().to_vec())
    })?;
    let error = error_of_removals(&all)?;
    ensure!(error.contains("siblings of attributes"), "twice: {error}");

    // A leaf that names another one as its neighbour.
    fs::write(&image, &clean)?;
    let lost = DaBlock(77);
    edit_leaf(&image, ino, 1, |_, siblings| *siblings = (lost, lost))?;
    let error = error_of_removals(&all)?;
    ensure!(
        error.contains("siblings of attributes") && error.contains("77"),
        "{error}"
    );

    // A name and a value that the format has no room for.
    for change in [Change::set(&[b'n'; 256], b""), Change::set(b"n", &vec![1; 65_537])] {
        fs::write(&image, &clean)?;
        let error = error_of(&change)?;
        ensure!(error.contains("name and value of an ATTRI"), "{error}");
    }
    // A node whose child is the node.
    fs::write(&image, &clean)?;
    let node_as_child = |bytes: Vec<u8>, expect: &Expect<'_>, lsn| {
        let entry = DaNodeEntry {
            hashval: U32::new(u32::MAX),
            before: U32::new(1),
        };
        drop(bytes);
        let bytes = AttrNodeBlock::build(1, &[entry], (DaBlock(0), DaBlock(0)), expect).context("a node")?;
        Ok(AttrNodeBlock::seal(bytes, expect, lsn)?.bytes().to_vec())
    };
    for block in [0, 1] {
        edit(&image, ino, block, node_as_child)?;
    }
    let error = error_of(&Change::set(b"new", b"value"))?;
    ensure!(error.contains("nodes of attributes"), "{error}");
    Ok(())
}
