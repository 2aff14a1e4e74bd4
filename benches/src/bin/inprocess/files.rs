//! A large file: streamed, read back cold, written and read in random blocks; small files with an
//! fsync each.

use anyhow::{Result, ensure};
use cowshed_benches::Measured;
use cowshed_device_sim::Rng;
use cowshed_vfs::{FileSystem as _, Handle, NodeId, OpenFlags, OpenRequest, WriteFlags};

use crate::report::Report;
use crate::rig::{CALLER, Rig};

pub const ALL: &[&str] = &[
    "stream-write",
    "stream-read-cold",
    "random-read-4k",
    "random-write-4k",
    "overwrite-sync-4k",
    "fsync-4k",
];

pub const CALL_BYTES: usize = 1 << 20;
const BLOCK: u64 = 4096;
const RANDOM_OPS: u64 = 200_000;
const FSYNC_OPS: u64 = 2_000;

pub struct File {
    pub node: NodeId,
    pub handle: Handle,
}

pub fn create(rig: &Rig, name: &[u8]) -> Result<File> {
    let request = OpenRequest {
        flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
        kill_suidgid: false,
    };
    let (entry, opened) = rig.fs.create(&CALLER, rig.dir, name, 0o644, &request)?;
    Ok(File {
        node: entry.node,
        handle: opened.handle,
    })
}

pub fn write(rig: &Rig, file: &File, at: u64, data: &[u8]) -> Result<()> {
    let count = rig
        .fs
        .write(&CALLER, file.node, file.handle, at, data, WriteFlags::empty())?;
    ensure!(count == data.len(), "a short write");
    Ok(())
}

pub fn run(rig: &Rig, report: &Report, stream_bytes: u64) -> Result<()> {
    let file = create(rig, b"large")?;
    let mut buf = vec![0; CALL_BYTES];
    Rng::new(1).fill(&mut buf);
    let calls = stream_bytes / CALL_BYTES as u64;
    let bytes = calls * CALL_BYTES as u64;
    let stream = Measured::of(|| {
        for n in 0..calls {
            write(rig, &file, n * CALL_BYTES as u64, &buf)?;
        }
        rig.commit()?;
        anyhow::Ok((calls, bytes))
    })?;
    report.say("stream-write", &stream);
    rig.cool()?;
    let wanted = buf.clone();
    let read = Measured::of(|| {
        for n in 0..calls {
            let at = n * CALL_BYTES as u64;
            let count = rig.fs.read(&CALLER, file.node, file.handle, at, &mut buf)?;
            ensure!(count == buf.len(), "a short read");
        }
        anyhow::Ok((calls, bytes))
    })?;
    ensure!(buf == wanted, "what was read is not what was written");
    report.say("stream-read-cold", &read);
    if report.wants(&["random-read-4k", "random-write-4k", "overwrite-sync-4k"]) {
        random(rig, report, &file, bytes / BLOCK)?;
    }
    if report.wants(&["fsync-4k"]) {
        let small = create(rig, b"small")?;
        let synced = Measured::of(|| {
            for n in 0..FSYNC_OPS {
                write(rig, &small, n * BLOCK, &buf[..BLOCK as usize])?;
                rig.fs.fsync(&CALLER, small.node, small.handle, false)?;
            }
            anyhow::Ok((FSYNC_OPS, FSYNC_OPS * BLOCK))
        })?;
        report.say("fsync-4k", &synced);
    }
    Ok(())
}

fn random(rig: &Rig, report: &Report, file: &File, blocks: u64) -> Result<()> {
    let mut dice = Rng::new(2);
    let mut block = [0; BLOCK as usize];
    let bytes = RANDOM_OPS * BLOCK;
    let read = Measured::of(|| {
        for _ in 0..RANDOM_OPS {
            let at = dice.below(blocks) * BLOCK;
            rig.fs.read(&CALLER, file.node, file.handle, at, &mut block)?;
        }
        anyhow::Ok((RANDOM_OPS, bytes))
    })?;
    report.say("random-read-4k", &read);
    let written = Measured::of(|| {
        for _ in 0..RANDOM_OPS {
            write(rig, file, dice.below(blocks) * BLOCK, &block)?;
        }
        anyhow::Ok((RANDOM_OPS, bytes))
    })?;
    report.say("random-write-4k", &written);
    let synced = Measured::of(|| rig.commit().map(|()| (RANDOM_OPS, bytes)))?;
    report.say("overwrite-sync-4k", &synced);
    Ok(())
}
