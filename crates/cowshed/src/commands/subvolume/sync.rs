//! `subvolume sync`: waits until deleted subvolumes are gone from the volume.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::calls;

pub fn run(path: &Path, ids: &[u64], pause: Duration) -> Result<()> {
    let look = |ids: &[u64]| -> Result<Vec<u64>> {
        let left = calls::deleted(path).with_context(|| path.display().to_string())?;
        Ok(left.into_iter().filter(|id| ids.contains(id)).collect())
    };
    let mut wanted = match ids {
        [] => calls::deleted(path).with_context(|| path.display().to_string())?,
        ids => ids.to_vec(),
    };
    loop {
        let left = look(&wanted)?;
        for gone in wanted.iter().filter(|id| !left.contains(id)) {
            println!("Subvolume id {gone} is gone");
        }
        if left.is_empty() {
            return Ok(());
        }
        wanted = left;
        std::thread::sleep(pause);
    }
}
