//! Data fills the volume and goes, names fill it and go, data again: each time as far as the first
//! time, because block groups that became empty make room for the other kind.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfs_store::space::GroupStats;
use cowshed_device::MemDevice;
use cowshed_harness::{KernelVolume, need, progs};
use cowshed_model::{At, Name, Op, Place};
use cowshed_random::judge;
use cowshed_random::subject::{Setup, Subject};
use cowshed_vfs::{Error, FileSystem as _, SetXattrFlags};

const MIB: u64 = 1 << 20;
/// A chunk of so small a volume: what a group that is not quite empty may keep.
const CHUNK_BYTES: u64 = 16 * MIB;
const ROUNDS: usize = 3;
/// With these attributes names fill leaves.
const XATTRS: u8 = 4;
const XATTR_BYTES: u32 = 3000;
const NAMES_MAX: u16 = 30_000;

fn place(n: u16) -> Place {
    Place {
        dir: At::Path(vec![]),
        name: Name(n),
    }
}

fn at(n: u16) -> At {
    At::Path(vec![Name(n)])
}

/// Applies; false where there is no space.
fn apply(subject: &mut Subject, op: &Op) -> Result<bool> {
    subject.clock.advance();
    match subject.apply(op)? {
        Err(Error::NoSpace) => Ok(false),
        Err(error) => anyhow::bail!("{op:?}: {error}"),
        Ok(_) => Ok(true),
    }
}

fn create(subject: &mut Subject, n: u16) -> Result<bool> {
    let op = Op::create(place(n), 0o644, true, false);
    apply(subject, &op)
}

/// What a kind of filling made.
#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    names: u16,
    bytes: u64,
}

/// Files of 1 MiB, then smaller ones, until the volume is full.
fn fill_with_data(subject: &mut Subject) -> Result<Filled> {
    let mut filled = Filled::default();
    for len in [MIB as u32, 64 << 10, 4096] {
        loop {
            let n = Name::FIRST_WIDE + filled.names;
            if !create(subject, n)? {
                return Ok(filled);
            }
            filled.names += 1;
            let write = Op::write(at(n), 0, len, u64::from(n), false);
            if !apply(subject, &write)? {
                break;
            }
            filled.bytes += u64::from(len);
        }
        // The space that write-back held too much comes back.
        ensure!(apply(subject, &Op::Sync)?, "what was accepted has its space");
    }
    Ok(filled)
}

/// Names with an attribute until there is no room for more.
fn fill_with_names(subject: &mut Subject) -> Result<Filled> {
    let mut filled = Filled::default();
    'full: while filled.names < NAMES_MAX {
        let n = Name::FIRST_WIDE + filled.names;
        if !create(subject, n)? {
            break;
        }
        filled.names += 1;
        for name in 0..XATTRS {
            let xattr = Op::set_xattr(at(n), name, XATTR_BYTES, 1, SetXattrFlags::empty());
            if !apply(subject, &xattr)? {
                break 'full;
            }
            filled.bytes += u64::from(XATTR_BYTES);
        }
    }
    ensure!(filled.names < NAMES_MAX, "the volume is too large for this test");
    ensure!(apply(subject, &Op::Sync)?, "what was accepted has its space");
    Ok(filled)
}

fn remove(subject: &mut Subject, filled: Filled) -> Result<()> {
    for n in 0..filled.names {
        let op = Op::unlink(place(Name::FIRST_WIDE + n));
        ensure!(apply(subject, &op)?, "a full volume can delete");
    }
    ensure!(apply(subject, &Op::Sync)?, "deleting has its space");
    Ok(())
}

/// Both checkers find nothing, the kernel mounts, writes and goes, and they find nothing again.
fn judge_all(devices: &[Arc<MemDevice>]) -> Result<()> {
    judge::own_check(devices)?;
    if need::kernel_btrfs().is_none() {
        return Ok(());
    }
    let copies: Vec<MemDevice> = devices.iter().map(|d| d.snapshot()).collect();
    let volume = KernelVolume::from_memory(&copies)?;
    let check = |when: &str| -> Result<()> {
        let report = volume.check(progs::CheckOptions {
            data_csum: true,
            ..progs::CheckOptions::default()
        })?;
        ensure!(report.clean, "{when}: btrfs check complains:\n{}", report.output);
        Ok(())
    };
    check("as we left it")?;
    // On a full volume the kernel may have no room for it; what it then does must be right all the
    // same.
    volume.with_mount(|root| {
        let _ = std::fs::write(root.join("by-the-kernel"), vec![5; 300_000]);
        let _ = std::fs::create_dir(root.join("dir"));
        progs::scrub(root)?;
        Ok(())
    })?;
    check("after the kernel")
}

fn stats(subject: &Subject) -> GroupStats {
    subject.fs.mount().store().space().group_stats()
}

fn take_turns(setup: &Setup) -> Result<()> {
    let mut subject = Subject::new(setup)?;
    let mut first: Option<[Filled; 2]> = None;
    for round in 0..ROUNDS {
        let before = stats(&subject);
        let data = fill_with_data(&mut subject)?;
        judge_all(&subject.snapshot()).with_context(|| format!("round {round}, full of data"))?;
        remove(&mut subject, data)?;
        let between = stats(&subject);
        let names = fill_with_names(&mut subject)?;
        judge_all(&subject.snapshot()).with_context(|| format!("round {round}, full of names"))?;
        remove(&mut subject, names)?;
        let after = stats(&subject);
        judge_all(&subject.snapshot()).with_context(|| format!("round {round}, empty"))?;
        println!("round {round}: {data:?} {names:?} {before:?} {between:?} {after:?}");
        ensure!(
            after.retired > between.retired,
            "names got the room of data: {between:?} {after:?}"
        );
        if let Some([first_data, first_names]) = first {
            ensure!(
                between.retired > before.retired,
                "data got the room of names: {before:?} {between:?}"
            );
            ensure!(
                data.bytes + CHUNK_BYTES >= first_data.bytes && names.bytes + CHUNK_BYTES >= first_names.bytes,
                "round {round}: {data:?} and {names:?}, at first {first:?}"
            );
        }
        first.get_or_insert([data, names]);
        if round == 1 {
            subject.remount()?;
        }
    }
    subject.fs.destroy();
    Ok(())
}

fn setup(device_mib: u64, node_bytes: u32) -> Setup {
    Setup {
        device_bytes: device_mib * MIB,
        node_bytes,
        ..Setup::default()
    }
}

#[test]
fn data_and_names_take_turns_on_128_mib() {
    take_turns(&setup(128, 4096)).unwrap_or_else(|e| panic!("{e:#}"));
    take_turns(&setup(128, 16384)).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn data_and_names_take_turns_on_256_mib() {
    take_turns(&setup(256, 16384)).unwrap_or_else(|e| panic!("{e:#}"));
}
