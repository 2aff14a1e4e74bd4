//! How long fsync of a big directory takes. Run on its own:
//! `cargo test --release -p cowshed-btrfs --test fsync speed -- --ignored --nocapture`

use std::time::Instant;

use cowshed_harness::{KernelVolume, VolumeOptions};

use crate::rig::{Rig, can_run};

const FILES: usize = 1_000_000;

/// Processor time of this thread: on a busy machine it says more than the clock.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

#[test]
#[ignore = "a measurement"]
fn speed_of_a_million_names() {
    if !can_run() {
        return;
    }
    for node_bytes in [16384, 65536] {
        let options = VolumeOptions {
            node_bytes: Some(node_bytes),
            size_bytes: 8 << 30,
            ..VolumeOptions::default()
        };
        let rig = Rig::on(KernelVolume::make(&options).unwrap());
        let dir = rig.mkdir("d").unwrap().node;
        let count: usize = std::env::var("COWSHED_FILES").map_or(FILES, |v| v.parse().unwrap());
        let timed = |what: &str, run: &dyn Fn()| {
            let (start, cpu) = (Instant::now(), cpu_seconds());
            run();
            let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            println!("leaves of {node_bytes}: {what}: {seconds:.3} s, of a processor {cpu:.3} s");
        };
        timed("create", &|| {
            for i in 0..count {
                rig.create_in(dir, &format!("file-{i}"));
            }
        });
        timed("fsync", &|| rig.fsync("d"));
        timed("sync", &|| rig.commit());
        timed("delete every 1000th", &|| {
            for i in (0..count).step_by(1000) {
                rig.unlink(&format!("d/file-{i}")).unwrap();
            }
        });
        timed("fsync", &|| rig.fsync("d"));
        println!("{:?}", rig.fs.mount().log_stats());
        println!("{:?}", rig.fs.mount().commit_stats());
        drop(rig.unmount());
    }
}
