//! One random run: operations, and a comparison of both replays after some of the fsyncs.

use anyhow::{Result, ensure};
use cowshed_harness::{Keep, VolumeOptions};
use cowshed_model::script::{MountPlayer, Op};

use super::writer::Writer;
use super::{Crash, judge};

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Crash images that are judged.
    pub images: u32,
    /// Operations between two of them, about.
    pub steps: u32,
}

/// A sync that does not succeed in so many steps never will.
const STEPS_MAX: usize = 10_000;

struct Run {
    writer: Writer,
    player: MountPlayer,
    /// What was done, to be shown when a comparison fails.
    done: Vec<String>,
}

impl Run {
    /// Does something; true where an fsync succeeded.
    fn step(&mut self) -> bool {
        let mut synced = false;
        for op in self.writer.step() {
            let end = self.player.apply(&op);
            synced |= end.is_ok() && matches!(op, Op::Fsync { .. });
            let told = end.map_or_else(|error| error.kind().to_string(), |()| "done".into());
            self.done.push(format!("{op}: {told}"));
        }
        synced
    }

    fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }
}

/// Runs; returns how many images had a log. Errors: a difference, with what was done since the last
/// commit.
pub fn run(seed: u64, options: &VolumeOptions, length: Length, keep: &Keep) -> Result<u32> {
    let crash = Crash::new(options)?;
    let dir = crash.dir().to_owned();
    let mut run = Run {
        writer: Writer::new(seed),
        player: MountPlayer::new(&dir),
        done: Vec::new(),
    };
    // Not by the seed's parity, from which the kind of volume follows.
    if (seed + seed / 10) % 2 == 1 {
        crash.mounted().btrfs(&["subvolume", "create", "{}/sub"])?;
        run.writer.roots.push("sub");
    }
    crash.play(&run.writer.directories())?;
    let mut crashes = Vec::new();
    for image in 0..length.images {
        run.steps(length.steps);
        if image == 0 && seed.is_multiple_of(3) {
            // What the log changes from here on is shared.
            let source = if run.writer.roots.contains(&"sub") {
                "{}/sub"
            } else {
                "{}"
            };
            crash.mounted().btrfs(&["subvolume", "snapshot", source, "{}/snap"])?;
            run.writer.roots.push("snap");
        }
        crash.play(&[Op::Sync])?;
        let since = run.done.len();
        run.steps(length.steps);
        let synced = (0..STEPS_MAX).any(|_| run.step());
        ensure!(synced, "no sync succeeds any more:\n{}", run.done.join("\n"));
        crashes.push((crash.image()?, run.done[since..].join("\n")));
    }
    // The kernel would mix up the devices of two volumes with one id.
    drop(run);
    drop(crash);
    let mut with_log = 0;
    for (image, (copy, done)) in crashes.iter().enumerate() {
        match judge::judge(copy) {
            Ok(had_log) => with_log += u32::from(had_log),
            Err(error) => {
                let failure = error.context(format!(
                    "seed {seed}, image {image}, {}; since the commit:\n{done}",
                    options.describe()
                ));
                return Err(keep.files(&format!("items-{seed}-{image}"), copy.images(), failure));
            }
        }
    }
    Ok(with_log)
}
