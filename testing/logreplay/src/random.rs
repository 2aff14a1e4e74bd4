//! One random run: operations, and a comparison of both replays after some of the fsyncs.

use anyhow::{Result, ensure};
use cowshed_harness::{Keep, VolumeOptions};

use crate::writer::Writer;
use crate::{Crash, judge};

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

/// Runs; returns how many images had a log. Errors: a difference, with what was done since the last commit.
pub fn run(seed: u64, options: &VolumeOptions, length: Length, keep: &Keep) -> Result<u32> {
    let crash = Crash::new(options)?;
    let dir = crash.dir().to_owned();
    let mut writer = Writer::new(&dir, seed);
    // Not by the seed's parity, from which the kind of volume follows.
    if (seed + seed / 10) % 2 == 1 {
        crash.mounted().btrfs(&["subvolume", "create", "{}/sub"])?;
        writer.roots.push("sub");
    }
    writer.make_directories()?;
    let mut crashes = Vec::new();
    for image in 0..length.images {
        for _ in 0..length.steps {
            writer.step();
        }
        if image == 0 && seed.is_multiple_of(3) {
            // What the log changes from here on is shared.
            let source = if writer.roots.contains(&"sub") { "{}/sub" } else { "{}" };
            crash.mounted().btrfs(&["subvolume", "snapshot", source, "{}/snap"])?;
            writer.roots.push("snap");
        }
        crash.commit()?;
        let since = writer.done.len();
        for _ in 0..length.steps {
            writer.step();
        }
        let synced = (0..STEPS_MAX).any(|_| writer.step());
        ensure!(synced, "no sync succeeds any more:\n{}", writer.done.join("\n"));
        crashes.push((crash.image()?, writer.done[since..].join("\n")));
    }
    // The kernel would mix up the devices of two volumes with one id.
    drop(writer);
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
                return Err(keep.files(&format!("logreplay-{seed}-{image}"), copy.images(), failure));
            }
        }
    }
    Ok(with_log)
}
