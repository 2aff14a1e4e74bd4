//! `subvolume sync`: waits until deleted subvolumes are gone from the volume.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;

use super::super::place::{Images, Place};
use super::super::roots::{Roots, deleted};
use super::super::say::{print, reason};

#[derive(Args, Debug)]
pub struct SyncArgs {
    /// A directory on the volume
    path: PathBuf,
    /// Numbers of subvolumes; all that are deleted now where none is given
    ids: Vec<String>,
    /// Seconds between two looks at most; the first looks are closer together
    #[arg(short, default_value_t = 1)]
    seconds: u64,
}

/// Between the first two looks.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Later, a pause is the time waited so far divided by this: what is gone is noticed that much
/// later at most.
const WAITED_BY_PAUSE: u32 = 16;

pub fn run(args: &SyncArgs) -> Result<u8> {
    let mut images = Images::to_write();
    let place = images.directory(&args.path)?;
    let failed = |error| anyhow!("Could not search B-tree: {}", reason(&error));
    let parse = |text: &String| {
        let id = text.parse().ok();
        id.ok_or_else(|| anyhow!("subvolume id {text} out of range"))
    };
    let mut wanted = args.ids.iter().map(parse).collect::<Result<Vec<u64>>>()?;
    if args.ids.is_empty() {
        wanted = deleted(&place).map_err(failed)?;
    }
    let count = wanted.len();
    let plural = if count == 1 { "" } else { "s" };
    if count > 0 {
        print(format_args!("Waiting for {count} subvolume{plural}"))?;
    }
    // Data that was written into them and is not on disk yet keeps them in use.
    place.commit().map_err(failed)?;
    let mut gone = 0;
    let started = Instant::now();
    let pause_max = Duration::from_secs(args.seconds);
    loop {
        let there = there(&place).map_err(failed)?;
        for id in wanted.extract_if(.., |id| !there.contains(id)) {
            gone += 1;
            print(format_args!("Subvolume id {id} is gone ({gone}/{count})"))?;
            std::io::stdout().flush()?;
        }
        if wanted.is_empty() {
            break;
        }
        // Most are gone soon.
        let pause = FIRST_PAUSE.max(started.elapsed() / WAITED_BY_PAUSE);
        std::thread::sleep(pause.min(pause_max));
    }
    drop(place);
    images.close()?;
    Ok(0)
}

/// Numbers of the trees that there are still.
fn there(place: &Place) -> std::io::Result<Vec<u64>> {
    Ok(Roots::load(place)?.iter().map(|root| root.id).collect())
}
