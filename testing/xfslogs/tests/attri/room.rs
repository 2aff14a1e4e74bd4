//! Inodes of all kinds that have no room for the attributes that they get.

use super::*;

/// Objects without room for attributes, by name.
const KINDS: &[&str] = &[
    "pipe",
    "empty",
    "extents_3",
    "extents_8",
    "extents_12",
    "extents_13",
    "extents_17",
    "extents_20",
    "extents_40",
    "extents_400",
    "extents_700",
    "link_20",
    "link_150",
    "link_250",
    "link_320",
    "dir_0",
    "dir_2",
    "dir_8",
    "dir_13",
    "dir_18",
];
const SIZES: &[usize] = &[0, 10, 60, 130, 131, 140, 200, 230, 255, 256, 3000, 20_000];

/// What follows the kind in a name, for inodes of 512 bytes; others have so much more.
fn number(kind: &str, inode_bytes: usize) -> usize {
    let number: usize = kind
        .rsplit_once('_')
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or(0);
    let scaled = number * (inode_bytes - 176) / 336;
    scaled.min(if kind.starts_with("link") { 1000 } else { 700 })
}

fn make_object(path: &Path, kind: &str, inode_bytes: usize) -> Result<()> {
    if kind.starts_with("link") {
        std::os::unix::fs::symlink("t".repeat(number(kind, inode_bytes)), path)?;
    } else if kind.starts_with("dir") {
        fs::create_dir(path)?;
    } else if kind == "pipe" {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    } else {
        fs::write(path, b"")?;
    }
    Ok(())
}

/// Fills an object that has no room for attributes yet.
fn fill_object(path: &Path, kind: &str, inode_bytes: usize) -> Result<()> {
    if kind.starts_with("extents") {
        let file = fs::OpenOptions::new().write(true).open(path)?;
        file.set_len(number(kind, inode_bytes) as u64 * 16384)?;
        for index in (0..number(kind, inode_bytes) as u64).rev() {
            file.write_all_at(&index.to_le_bytes(), index * 16384)?;
        }
        file.sync_all()?;
    } else if kind.starts_with("dir") {
        // A hole between entries stays one.
        for index in 0..=number(kind, inode_bytes) {
            fs::write(path.join(format!("a_file_{index}")), b"")?;
        }
        fs::remove_file(path.join("a_file_0"))?;
    }
    Ok(())
}

/// What an object holds.
fn contents(path: &Path) -> Result<Vec<u8>> {
    let ty = fs::symlink_metadata(path)?.file_type();
    if ty.is_symlink() {
        return Ok(fs::read_link(path)?.into_os_string().into_encoded_bytes());
    }
    if ty.is_dir() {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            names.push(format!("{} {:?}", entry.metadata()?.ino(), entry.file_name()));
        }
        return Ok(names.join("/").into_bytes());
    }
    Ok(if ty.is_file() { fs::read(path)? } else { Vec::new() })
}

/// Takes the room for attributes from an object, which has none yet.
fn take_room(image: &Path, ino: u64) -> Result<()> {
    let volume = recovered(image)?;
    let geometry = volume.geometry();
    let inode = common::inode(&volume, ino)?;
    let mut core = inode.core();
    core.forkoff = 0;
    let (group, within) = geometry.split_ino(Ino(ino)).context("an inode")?;
    let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
    let expect = Expect::of_inode(geometry, daddr, Ino(ino));
    let bytes = Inode::build(&core, inode.fork_bytes(ForkKind::Data), &[], &expect).context("forks")?;
    let inode = Inode::seal(bytes, &expect, Lsn(core.lsn.get()))?;
    let at = daddr.get() * 512 + u64::from(geometry.ino_offset_bytes(within));
    Ok(fs::OpenOptions::new()
        .write(true)
        .open(image)?
        .write_all_at(inode.bytes(), at)?)
}

#[test]
fn attris_make_room_in_inodes_as_programs_do_on_linux() {
    if !is_able() {
        return;
    }
    for mkfs in ["", "-b size=1k", "-i size=1024", "-m rmapbt=1 -i size=2048 -n size=16k"] {
        run_room(mkfs).unwrap_or_else(|error| panic!("{mkfs}: {error:#}"));
    }
}

/// Objects of all kinds get a first attribute of all sizes. Linux makes the room before it logs an
/// intent, so that its programs are the judge.
fn run_room(mkfs: &str) -> Result<()> {
    let ours = volume(mkfs)?;
    let inode_bytes = recovered(ours.image())?.geometry().inode_bytes as usize;
    let all: Vec<(String, &str, usize)> = KINDS
        .iter()
        .flat_map(|kind| SIZES.iter().map(move |size| (format!("{kind}.{size}"), *kind, *size)))
        .collect();
    let inos = ours.with_mount(|root| {
        let mut inos = Vec::new();
        for (name, kind, _) in &all {
            make_object(&root.join(name), kind, inode_bytes)?;
            inos.push(fs::symlink_metadata(root.join(name))?.ino());
        }
        Ok(inos)
    })?;
    for ino in &inos {
        take_room(ours.image(), *ino)?;
    }
    let before = ours.with_mount(|root| {
        all.iter()
            .try_for_each(|(name, kind, _)| fill_object(&root.join(name), kind, inode_bytes))?;
        all.iter()
            .map(|(name, ..)| contents(&root.join(name)))
            .collect::<Result<Vec<_>>>()
    })?;
    let changes: Vec<Change> = all
        .iter()
        .map(|(_, _, size)| Change::set(b"a", &vec![7; *size]))
        .collect();
    let clean = fs::read(ours.image())?;
    let start = recovered(ours.image())?;
    let level = |of: &Volume, ino: &u64| -> Result<u8> {
        Ok(match common::inode(of, *ino)?.fork(ForkKind::Data) {
            Some(Fork::Btree(root)) => root.level,
            _ => 0,
        })
    };
    let levels = inos.iter().map(|ino| level(&start, ino)).collect::<Result<Vec<_>>>()?;
    let start = inos
        .iter()
        .map(|ino| stored(&start, *ino))
        .collect::<Result<Vec<_>>>()?;
    ensure!(start.iter().all(|stored| stored.forkoff == 0), "no object has room");

    // Linux, by programs.
    ours.with_mount(|root| {
        let mut both = all.iter().zip(&changes);
        both.try_for_each(|((name, ..), change)| {
            let value = &change.value[..];
            Ok(rustix::fs::lsetxattr(
                root.join(name),
                "trusted.a",
                value,
                XattrFlags::empty(),
            )?)
        })
    })?;
    let linux = recovered(ours.image())?;
    let expected = inos
        .iter()
        .map(|ino| stored(&linux, *ino))
        .collect::<Result<Vec<_>>>()?;
    let root_bits = linux.superblock().versionnum.get();
    // The kernel's image stays open.
    fs::rename(ours.image(), ours.dir().join("kernel.img"))?;
    fs::write(ours.image(), clean)?;
    set_logged_attributes(ours.image())?;
    let mut log = Log::open(ours.image())?;
    let mut tail = None;
    for (number, (change, ino)) in changes.iter().zip(&inos).enumerate() {
        let attri = Attri {
            filter: attr_flags::ROOT,
            ..change.attri(*ino)
        };
        let lsn = log.append(&[attri.item(number as u64)], |header| {
            if let Some(tail) = tail {
                header.tail_lsn.set(tail);
            }
        })?;
        tail = tail.or(Some(lsn.0));
    }
    let volume = recovered(ours.image())?;
    ensure!(
        volume.superblock().versionnum.get() == root_bits,
        "the superblock says so"
    );
    for (((name, ..), ino), expected) in all.iter().zip(&inos).zip(&expected) {
        let found = stored(&volume, *ino).with_context(|| name.clone())?;
        found.compare(expected).with_context(|| name.clone())?;
        let blocks = |of: &Volume| Ok::<u64, anyhow::Error>(common::inode(of, *ino)?.core().nblocks.get());
        let (found, expected) = (blocks(&volume)?, blocks(&linux)?);
        ensure!(found == expected, "{name}: {found} blocks, the kernel's {expected}");
    }
    // Data that moved to blocks, extents that moved to a tree, and roots of trees that moved down.
    let moved = |kind: &str| {
        let both = start
            .iter()
            .zip(&expected)
            .zip(&all)
            .filter(|(_, (name, ..))| name.starts_with(kind));
        both.filter(|((start, end), _)| start.format != end.format).count()
    };
    for kind in ["link", "dir", "extents"] {
        // The longest symlink fits an inode of 2 KiB beside all attributes.
        let least = if kind == "link" && inode_bytes > 1024 { 0 } else { 4 };
        ensure!(moved(kind) >= least, "{kind}: {} moved", moved(kind));
    }
    let mut deeper = 0;
    for (ino, before) in inos.iter().zip(&levels) {
        let (found, expected) = (level(&volume, ino)?, level(&linux, ino)?);
        ensure!(
            found == expected,
            "levels of inode {ino}: {found}, the kernel's {expected}"
        );
        deeper += usize::from(*before > 0 && found > *before);
    }
    ensure!(deeper > 0 || !mkfs.contains("-b size=1k"), "roots that moved down");
    let report = judge(ours.image())?;
    ensure!(report.is_clean(), "{report}");
    drop(volume);
    // The kernel finds all of it done, and does it again.
    put_home(ours.image())?;
    let after = ours.with_mount(|root| {
        let contents = all.iter().map(|(name, ..)| contents(&root.join(name)));
        contents.collect::<Result<Vec<_>>>()
    })?;
    for (((name, ..), before), after) in all.iter().zip(&before).zip(&after) {
        ensure!(before == after, "{name}: contents");
    }
    repair(ours.image())
}
