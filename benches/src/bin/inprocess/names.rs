//! A directory with a million names: made, committed, found, listed, removed.

use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use cowshed_benches::Measured;
use cowshed_benches::allocations::live_bytes;
use cowshed_btrfs::fs::Fs;
use cowshed_device_sim::Rng;
use cowshed_vfs::{FileSystem as _, Handle, Lookup, NodeId, OpenFlags, OpenRequest};

use crate::report::Report;
use crate::rig::{CALLER, Rig};

pub const ALL: &[&str] = &[
    "create",
    "commit-creates",
    "getattr",
    "lookup-cached",
    "lookup-cold",
    "lookup-warm",
    "readdir",
    "readdirplus",
    "unlink",
    "commit-unlinks",
];

const CREATE: OpenRequest = OpenRequest {
    flags: OpenFlags::READ
        .union(OpenFlags::WRITE)
        .union(OpenFlags::CREATE)
        .union(OpenFlags::EXCLUSIVE),
    kill_suidgid: false,
};

/// The n-th name, without an allocation.
struct Name([u8; 13]);

impl Name {
    fn of(n: u64) -> Name {
        let mut name = *b"file-00000000";
        let mut rest = n;
        for digit in name.iter_mut().rev().take(8) {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Name(name)
    }
}

/// Makes the n-th file of a directory and closes it.
pub fn create(fs: &Fs, dir: NodeId, n: u64) -> Result<NodeId> {
    let (entry, opened) = fs.create(&CALLER, dir, &Name::of(n).0, 0o644, &CREATE)?;
    fs.release(entry.node, opened.handle);
    Ok(entry.node)
}

pub fn run(rig: &Rig, report: &Report, count: u64, forget: bool) -> Result<()> {
    let (fs, dir) = (&rig.fs, rig.dir);
    let mut nodes: Vec<NodeId> = Vec::with_capacity(count as usize);
    let each = |run: &mut dyn FnMut(u64) -> Result<()>| {
        Measured::of(|| {
            for n in 0..count {
                run(n)?;
            }
            anyhow::Ok((count, 0))
        })
    };
    let live_before = live_bytes() - rig.device_memory_bytes().cast_signed();
    let made = each(&mut |n| {
        let node = create(fs, dir, n)?;
        if forget {
            fs.forget(node, 1);
        } else {
            nodes.push(node);
        }
        Ok(())
    })?;
    report.say("create", &made);
    let commit = Measured::of(|| rig.commit().map(|()| (count, 0)))?;
    report.say("commit-creates", &commit);
    if !nodes.is_empty() {
        report.say_bytes_each("remembered", rig.live_bytes_settled()? - live_before, count);
    }
    if report.wants(&[
        "getattr",
        "lookup-cached",
        "lookup-cold",
        "lookup-warm",
        "readdir",
        "readdirplus",
    ]) {
        looks(rig, report, count, &nodes)?;
    } else {
        nodes.iter().for_each(|node| fs.forget(*node, 1));
    }
    if report.wants(&["unlink", "commit-unlinks"]) {
        let unlink = each(&mut |n| Ok(fs.unlink(&CALLER, dir, &Name::of(n).0)?))?;
        report.say("unlink", &unlink);
        let commit = Measured::of(|| rig.commit().map(|()| (count, 0)))?;
        report.say("commit-unlinks", &commit);
    }
    Ok(())
}

/// Everything that only reads. Forgets the nodes.
fn looks(rig: &Rig, report: &Report, count: u64, nodes: &[NodeId]) -> Result<()> {
    let (fs, dir) = (&rig.fs, rig.dir);
    let mut dice = Rng::new(1);
    if !nodes.is_empty() {
        let getattr = Measured::of(|| {
            for _ in 0..count {
                fs.getattr(&CALLER, nodes[dice.below(count) as usize], None)?;
            }
            anyhow::Ok((count, 0))
        })?;
        report.say("getattr", &getattr);
    }
    let lookup = |n: u64| -> Result<()> {
        let found = fs.lookup(&CALLER, dir, &Name::of(n).0)?;
        let Lookup::Found(entry) = found else {
            anyhow::bail!("a file is missing")
        };
        fs.forget(entry.node, 1);
        Ok(())
    };
    let all = |run: &mut dyn FnMut() -> u64| {
        Measured::of(|| {
            for _ in 0..count {
                lookup(run())?;
            }
            anyhow::Ok((count, 0))
        })
    };
    report.say("lookup-cached", &all(&mut || dice.below(count))?);
    nodes.iter().for_each(|node| fs.forget(*node, 1));
    rig.cool()?;
    let mut next = 0..count;
    report.say("lookup-cold", &all(&mut || next.next().unwrap_or(0))?);
    report.say("lookup-warm", &all(&mut || dice.below(count))?);
    rig.cool()?;
    report.say("readdir", &list(rig, false, count)?);
    rig.cool()?;
    report.say("readdirplus", &list(rig, true, count)?);
    Ok(())
}

/// Lists the directory in calls of as many entries as a FUSE buffer takes.
fn list(rig: &Rig, plus: bool, count: u64) -> Result<Measured> {
    const ENTRIES_PER_CALL: u64 = 512;
    let (fs, dir) = (&rig.fs, rig.dir);
    let mut seen = 0;
    let measured = Measured::of(|| {
        let mut cookie = 0;
        loop {
            let (mut taken, mut next, mut to_forget) = (0, cookie, Vec::new());
            if plus {
                fs.readdirplus(
                    &CALLER,
                    dir,
                    Handle::NONE,
                    cookie,
                    &mut |_| true,
                    &mut |entry, found| {
                        if taken == ENTRIES_PER_CALL {
                            return ControlFlow::Break(());
                        }
                        to_forget.extend(found.map(|e| e.node));
                        (taken, next) = (taken + 1, entry.cookie);
                        ControlFlow::Continue(())
                    },
                )?;
            } else {
                fs.readdir(&CALLER, dir, Handle::NONE, cookie, &mut |entry| {
                    if taken == ENTRIES_PER_CALL {
                        return ControlFlow::Break(());
                    }
                    (taken, next) = (taken + 1, entry.cookie);
                    ControlFlow::Continue(())
                })?;
            }
            to_forget.iter().for_each(|node| fs.forget(*node, 1));
            if taken == 0 {
                return anyhow::Ok((count, 0));
            }
            (seen, cookie) = (seen + taken, next);
        }
    })?;
    ensure!(seen == count + 2, "{seen} entries listed, expected {}", count + 2);
    Ok(measured)
}
