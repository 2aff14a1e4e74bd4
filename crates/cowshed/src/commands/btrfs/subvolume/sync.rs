//! `subvolume sync`: waits until deleted subvolumes are gone from the volume.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Seconds between two looks
    #[arg(short, default_value_t = 1)]
    seconds: u64,
}

/// Twice as long is between the first two looks.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

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
    let mut pause = FIRST_PAUSE;
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
        pause = (2 * pause).min(Duration::from_secs(args.seconds));
        std::thread::sleep(pause);
    }
    drop(place);
    images.close()?;
    Ok(0)
}

/// Numbers of the trees that there are still.
fn there(place: &Place) -> std::io::Result<Vec<u64>> {
    Ok(Roots::load(place)?.iter().map(|root| root.id).collect())
}
