//! Operations without a visible effect: that they do something at all, and that the judge looks.

use cowshed_crash::compressed;
use cowshed_crash::rig::Player;
use cowshed_crash::rig::{self, Layout};
use cowshed_crash::workload::{self, Mix};
use cowshed_device_sim::Rng;
use cowshed_model::script::Op;
use cowshed_model::tree;
use cowshed_vfs::FileSystem as _;

/// What they did in some runs.
#[derive(Debug, Default)]
struct Done {
    shared_bytes: u64,
    dedupes: usize,
    /// Without a compression, and with one.
    written_bytes: [u64; 2],
    defrags: [usize; 2],
}

fn run(seed: u64, done: &mut Done) {
    let devices = rig::make(Layout::Single, 4096, 0x22).unwrap();
    let options = compressed::options(compressed::drawn(seed));
    let fs = rig::mount_as(rig::shared(&devices), true, options).unwrap();
    let player = Player::new(&fs);
    for op in workload::choose(&mut Rng::new(seed), Mix::Syncs, 80) {
        let before = op.is_unseen().then(|| tree::take(&fs).unwrap());
        match &op {
            Op::Dedupe { .. } => {
                let bytes = player.dedupe(&op).unwrap_or(0);
                done.shared_bytes += bytes;
                done.dedupes += usize::from(bytes > 0);
            }
            Op::Defrag { compress, .. } => {
                let bytes = player.defrag(&op).unwrap_or(0);
                let kind = usize::from(compress.is_some());
                done.written_bytes[kind] += bytes;
                done.defrags[kind] += usize::from(bytes > 0);
            }
            _ => drop(player.apply(&op)),
        }
        if let Some(before) = before {
            let differences = tree::differences(&before, &tree::take(&fs).unwrap());
            assert_eq!(differences, "", "seed {seed}, `{op}`");
        }
    }
    let live = tree::take(&fs).unwrap();
    fs.destroy();
    drop(fs);
    let cold = rig::mount(rig::shared(&devices)).unwrap();
    assert_eq!(tree::differences(&live, &tree::take(&cold).unwrap()), "", "seed {seed}");
}

#[test]
fn runs_share_and_rewrite_and_nothing_of_it_is_seen() {
    let mut done = Done::default();
    (0..60).for_each(|seed| run(seed, &mut done));
    println!("{done:?}");
    assert!(
        done.dedupes > 40 && done.defrags.iter().all(|count| *count > 10),
        "{done:?}"
    );
}
