//! What is done with an image: the checker looks at it before and after the log is replayed, then
//! everything is read.

use std::ops::ControlFlow;
use std::sync::Arc;

use cowshed_device::BlockDevice;
use cowshed_device_sim::Rng;
use cowshed_vfs::{Context, FileKind, FileSystem as _, InitInfo, Volume as _};
use cowshed_xfs::{Fs, OpenOptions, Volume};
use xfs_check::{CheckOptions, Report};

use crate::exercise::Outcome;
use crate::image::Image;
use crate::walk::Walk;

static ROOT: Context = Context::root();
/// So small that lists go to the temporary file, and groups are judged in slices.
const CHECK_BYTES: usize = 1 << 20;
const CACHE_BYTES: usize = 4 << 20;

pub fn run(image: &Image, mut rng: Rng) -> Result<Outcome, String> {
    let device = &image.visible[0];
    check(device, false);
    let report = check(device, true);
    let mut outcome = Outcome {
        clean: report.is_clean(),
        ..Outcome::default()
    };
    match open(device, &options(false)) {
        Ok(fs) => {
            outcome.opened = true;
            let error = look_at(&fs, &mut rng);
            outcome.disagreement = error.filter(|_| outcome.clean);
        }
        Err(error) => outcome.disagreement = outcome.clean.then_some(error),
    }
    // The state on disk, whatever the log says.
    if let Ok(fs) = open(device, &options(true)) {
        look_at(&fs, &mut rng);
    }
    if !outcome.opened {
        // By a copy of the superblock, where it is the first one that is damaged.
        let by_copy = OpenOptions {
            use_superblock_copy: true,
            ..options(false)
        };
        if let Ok(fs) = open(device, &by_copy) {
            look_at(&fs, &mut rng);
        }
    }
    Ok(outcome)
}

fn check(device: &Arc<dyn BlockDevice>, replays: bool) -> Report {
    let replay = || {
        let volume = Volume::open(device.clone(), &options(false)).map_err(|error| error.to_string())?;
        Ok(volume.recovered_device())
    };
    let options = CheckOptions {
        kept_per_id_max: 5,
        memory_bytes: CHECK_BYTES,
        replay: replays.then_some(&replay),
        ..CheckOptions::default()
    };
    xfs_check::check(device.clone(), &options)
}

fn options(no_recovery: bool) -> OpenOptions {
    OpenOptions {
        no_recovery,
        rescue: true,
        cache_bytes_max: CACHE_BYTES,
        ..OpenOptions::default()
    }
}

fn open(device: &Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Fs, String> {
    let volume = Volume::open(device.clone(), options).map_err(|error| error.to_string())?;
    let fs = Fs::new(Arc::new(volume)).map_err(|error| error.to_string())?;
    fs.init(&InitInfo::TRUSTED).map_err(|error| error.to_string())?;
    Ok(fs)
}

/// Reads everything; the first fault of the volume.
fn look_at(fs: &Fs, rng: &mut Rng) -> Option<String> {
    let mut walk = Walk::new(fs);
    walk.everything(rng);
    let (nodes, error) = (std::mem::take(&mut walk.nodes), walk.error.take());
    for seen in nodes.iter().filter(|seen| seen.kind == FileKind::Regular) {
        let mut extents = 0;
        let mut take = |_: &cowshed_vfs::MapExtent| {
            extents += 1;
            if extents < 10_000 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let _ = fs.map_extents(seen.node, 0..u64::MAX, true, &mut take);
        let _ = fs.lookup_node(&ROOT, seen.node);
    }
    error
}
