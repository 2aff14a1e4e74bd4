//! Logs with a record that was planted: what our recovery makes of it, and the kernel's.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use common::{device, handle, judge, recovered};
use cowshed_harness::tree::colliding_xfs_names;
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_harness::{KernelLog, KernelMount, LoopDevice};
use cowshed_xfs::{OpenOptions, Volume};
use cowshed_xfslogs::is_able;
use cowshed_xfslogs::plant::{Attri, Regions, append, attri_op, set_new_bits};
use xfs_check::FindingId;
use xfs_format::attr::{AttrLeafBlock, attr_flags};
use xfs_format::{Daddr, Expect, Ino, Lsn};

/// An ATTRI that takes a parent pointer from a file.
fn parent_remove(id: u64, file: (u64, u32), parent: (u64, u32), name: &[u8]) -> Regions {
    let value = [&parent.0.to_be_bytes()[..], &parent.1.to_be_bytes()].concat();
    let attri = Attri {
        ino: file,
        op: attri_op::PARENT_REMOVE,
        filter: attr_flags::PARENT,
        name,
        value: &value,
        ..Attri::default()
    };
    attri.item(id)
}

/// Names of the parent pointers in the leaves of a file, leaf by leaf.
fn pointers(volume: &Volume, file: u64) -> Result<Vec<BTreeSet<Vec<u8>>>> {
    const OWNER_AT: usize = 48;
    let (geometry, device) = (volume.geometry(), volume.recovered_device());
    let mut leaves = Vec::new();
    let mut bytes = vec![0; geometry.block_bytes as usize];
    for at in (0..device.size_bytes()).step_by(bytes.len()) {
        device.read_at(at, &mut bytes)?;
        if bytes[8..10] != [0x3b, 0xee] || bytes[OWNER_AT..OWNER_AT + 8] != file.to_be_bytes() {
            continue;
        }
        let expect = Expect::of_inode(geometry, Daddr(at / 512), Ino(file));
        let leaf = AttrLeafBlock::verify(bytes.clone(), &expect)?;
        leaves.push(leaf.entries().map(|entry| entry.name.to_vec()).collect());
    }
    Ok(leaves)
}

#[test]
fn unfinished_attri_finds_its_name_behind_leaves_of_the_same_hash() {
    if !is_able() {
        return;
    }
    run_attri().unwrap_or_else(|error| panic!("{error:#}"));
}

/// A file with 400 names of one hash in one directory, whose parent pointers fill several leaves.
fn run_attri() -> Result<()> {
    let options = XfsOptions {
        size_bytes: 320 << 20,
        ..XfsOptions::new("-m rmapbt=1,reflink=1")
    };
    let volume = XfsVolume::make(&options)?;
    set_new_bits(volume.image())?;
    let names = colliding_xfs_names(400);
    let (file, dir) = volume.with_mount(|root| {
        let dir = root.join("dir");
        fs::create_dir(&dir)?;
        let path = |name: &[u8]| dir.join(std::ffi::OsStr::from_bytes(name));
        fs::write(path(&names[0]), b"")?;
        for name in &names[1..] {
            fs::hard_link(path(&names[0]), path(name))?;
        }
        Ok((
            Ino(fs::metadata(path(&names[0]))?.ino()),
            Ino(fs::metadata(&dir)?.ino()),
        ))
    })?;
    let report = judge(volume.image())?;
    assert!(report.is_clean(), "{report}");
    let clean = recovered(volume.image())?;
    assert!(clean.recovery().is_none());
    let (file, dir) = (handle(&clean, file)?, handle(&clean, dir)?);
    // Leaves are split where they are full, so these lie in several.
    let gone: Vec<&[u8]> = [3, 90, 170, 250, 330, 399].iter().map(|at| &names[*at][..]).collect();
    let items = gone
        .iter()
        .zip(1..)
        .map(|(name, id)| parent_remove(id, file, dir, name));
    append(volume.image(), &items.collect::<Vec<_>>(), |_| {})?;

    let before: BTreeSet<Vec<u8>> = names.iter().cloned().collect();
    let expected = &before - &gone.iter().map(|name| name.to_vec()).collect();
    let ours = recovered(volume.image())?;
    let unfinished = ours.recovery().map(|recovery| recovery.unfinished.clone());
    assert_eq!(unfinished.unwrap_or_default().get("ATTRI"), Some(&6));
    let found = pointers(&ours, file.0)?;
    assert!(found.len() > 4, "{} leaves", found.len());
    assert_eq!(found.iter().flatten().count(), expected.len());
    assert_eq!(found.iter().flatten().cloned().collect::<BTreeSet<_>>(), expected);
    volume.with_mount(|_| Ok(())).context("the kernel's recovery")?;
    let kernel = recovered(volume.image())?;
    assert!(kernel.recovery().is_none());
    assert_eq!(pointers(&kernel, file.0)?, found);
    Ok(())
}

/// What the kernel says when it refuses to mount an image. Errors: it mounts it.
fn refusal_of_kernel(image: &Path) -> Result<String> {
    let device = LoopDevice::attach(image)?;
    let name = device
        .path()
        .file_name()
        .context("a device")?
        .to_string_lossy()
        .into_owned();
    let dir = tempfile::tempdir()?;
    let mut log = KernelLog::start()?;
    if let Ok(mount) = KernelMount::new("xfs", &[device.path()], dir.path(), "") {
        mount.unmount()?;
        bail!("the kernel mounts it");
    }
    let lines = log.take()?.into_iter().map(|(_, line)| line);
    Ok(lines.filter(|line| line.contains(&name)).collect::<Vec<_>>().join("\n"))
}

#[test]
fn log_whose_tail_lies_ahead_of_its_last_record_is_refused() {
    if !is_able() {
        return;
    }
    run_tails().unwrap_or_else(|error| panic!("{error:#}"));
}

fn run_tails() -> Result<()> {
    let volume = XfsVolume::make(&XfsOptions {
        size_bytes: 320 << 20,
        ..XfsOptions::new("-m rmapbt=1,reflink=1")
    })?;
    volume.with_mount(|root| Ok(fs::write(root.join("file"), b"x")?))?;
    let planted = volume.dir().join("planted");
    let tails: [fn(u32) -> Lsn; 3] = [
        |block| Lsn::new(1, block + 100),
        |block| Lsn::new(2, block),
        |block| Lsn::new(9, block + 5),
    ];
    for tail in tails {
        fs::copy(volume.image(), &planted)?;
        let mut stated = Lsn::NULL;
        let at = append(&planted, &[], |header| {
            stated = tail(header.lsn().block());
            header.tail_lsn.set(stated.0);
        })?;
        let error = recovered(&planted).map(drop).expect_err("refused").to_string();
        assert!(
            error.contains("h_tail_lsn") && error.contains(&stated.to_string()),
            "{error}"
        );
        let report = judge(&planted)?;
        assert!(report.has(FindingId::LogInvalid), "{report}");
        assert!(report.to_string().contains("h_tail_lsn"), "{report}");
        let said = refusal_of_kernel(&planted).with_context(|| format!("tail {stated}"))?;
        assert!(said.contains("failed to locate log tail"), "{said}");

        // Where the checksum is wrong, the record was not written whole, and does not count.
        damage(&planted, at)?;
        assert!(recovered(&planted)?.recovery().is_none(), "tail {stated}");
        let report = judge(&planted)?;
        assert!(report.is_clean(), "{report}");
    }
    Ok(())
}

/// Flips a bit in the body of a record.
fn damage(image: &Path, at: Lsn) -> Result<()> {
    let volume = Volume::open(
        device(image)?,
        &OpenOptions {
            no_recovery: true,
            ..OpenOptions::default()
        },
    )?;
    let start = volume.geometry().log_start.context("a log inside")?;
    let start = volume.geometry().daddr(start).and_then(Daddr::checked_bytes);
    let at = start.context("an address")? + u64::from(at.block() + 1) * 512 + 20;
    let file = fs::File::options().read(true).write(true).open(image)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 1], at)?)
}
