//! How fast objects are made. Ignored: measures, and asserts nothing about time.

use std::time::Instant;

use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::{FileSystem, NodeId};

use crate::rig::{CREATE, ROOT, Rig, can_run};

const COUNT: u32 = 300_000;

/// Seconds that this thread has run: a shared machine's clock says little.
fn cpu_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Room enough that no commit comes for want of it.
fn roomy() -> Rig {
    let options = VolumeOptions {
        size_bytes: 16 << 30,
        ..VolumeOptions::default()
    };
    Rig::on(KernelVolume::make(&options).expect("mkfs.btrfs"))
}

#[test]
#[ignore = "a measurement: run with --release -- --ignored --nocapture speed"]
fn creates_per_second() {
    if !can_run() {
        return;
    }
    let rig = roomy();
    let dir = rig.mkdir("d").unwrap().node;
    let time = |what: &str, run: &mut dyn FnMut(u32)| {
        let start = Instant::now();
        (0..COUNT).for_each(&mut *run);
        let rate = f64::from(COUNT) / start.elapsed().as_secs_f64();
        eprintln!("{what:>10}: {rate:>10.0}/s");
    };
    let mut nodes: Vec<NodeId> = Vec::new();
    time("create", &mut |n| {
        let (entry, opened) = rig
            .fs
            .create(&ROOT, dir, format!("file-{n:08}").as_bytes(), 0o644, &CREATE)
            .unwrap();
        rig.fs.release(entry.node, opened.handle);
        nodes.push(entry.node);
    });
    time("getattr", &mut |n| {
        rig.fs.getattr(&ROOT, nodes[n as usize], None).unwrap();
    });
    time("lookup", &mut |n| {
        rig.entry_at(dir, format!("file-{n:08}").as_bytes()).unwrap();
    });
    time("forget", &mut |n| rig.fs.forget(nodes[n as usize], 2));
    let start = Instant::now();
    rig.commit();
    eprintln!("    commit: {:?}", start.elapsed());
    time("lookup", &mut |n| {
        let entry = rig.entry_at(dir, format!("file-{n:08}").as_bytes()).unwrap();
        rig.fs.forget(entry.node, 1);
    });
    let start = Instant::now();
    assert_eq!(rig.names("d").len(), COUNT as usize);
    eprintln!("   readdir: {:?}", start.elapsed());
    time("unlink", &mut |n| {
        rig.fs.unlink(&ROOT, dir, format!("file-{n:08}").as_bytes()).unwrap()
    });
    let start = Instant::now();
    rig.commit();
    eprintln!("    commit: {:?}", start.elapsed());
    rig.finish();
}

#[test]
#[ignore = "a measurement, for a profiler"]
fn creates_alone() {
    if !can_run() {
        return;
    }
    let rig = roomy();
    let dir = rig.mkdir("d").unwrap().node;
    let count = 3 * COUNT;
    let start = cpu_time();
    for n in 0..count {
        let name = format!("file-{n:08}");
        rig.fs.create(&ROOT, dir, name.as_bytes(), 0o644, &CREATE).unwrap();
    }
    eprintln!(
        "create: {:.0} per second of one core",
        f64::from(count) / (cpu_time() - start)
    );
    eprintln!("bytes of an inode: {}", size_of::<cowshed_btrfs::object::Inode>());
}
