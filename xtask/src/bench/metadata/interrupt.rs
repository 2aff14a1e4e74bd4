//! Cleaning up when the run is interrupted: images of many GiB in memory must not stay behind.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::super::side::Removed;
use super::super::switch;

/// What a shell reports for a program that a signal ended is 128 and the signal's number.
const INTERRUPTED: i32 = 128;

/// A second signal may end the `umount` that cleans up, and the interrupted run cleans up, too.
const TRIES_MAX: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT, SIGTERM and SIGHUP unmount and remove what this process made in `dir`,
/// restore the switch for io_uring, and exit.
pub fn clean_up_on_signals(dir: &Path) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            IS_INTERRUPTED.store(true, Ordering::SeqCst);
            switch::restore();
            for _ in 0..TRIES_MAX {
                ours(&dir).into_iter().map(Removed).for_each(drop);
                if ours(&dir).is_empty() {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
            std::process::exit(INTERRUPTED + signal);
        }
    });
    Ok(())
}

/// Does not return after a signal: the process exits when all is cleaned up.
pub fn wait_if_interrupted() {
    while IS_INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// The directories of this process's volumes and sources.
fn ours(dir: &Path) -> Vec<PathBuf> {
    let prefix = format!("cowshed-bench-{}-", std::process::id());
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&prefix))
    };
    entries.map(|entry| entry.path()).filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_this_process_are_removed() {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let own = scratch
            .path()
            .join(format!("cowshed-bench-{}-sources", std::process::id()));
        for path in [&own, &scratch.path().join("cowshed-bench-1-sources")] {
            std::fs::create_dir(path).unwrap();
        }
        assert_eq!(ours(scratch.path()), [own]);
    }
}
