//! How many transactions per second.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::database::{self, Journal, SMALL};

/// Runs transactions for a while on a fresh database in a directory; how many per second.
pub fn transactions_per_second(dir: &Path, journal: Journal, time: Duration) -> Result<f64> {
    let path = dir.join(format!("database-{journal:?}"));
    let mut connection = database::open(&path, journal)?;
    SMALL.fill(&mut connection)?;
    // Caches and allocators have settled by then.
    const WARM: i64 = 50;
    for n in 1..=WARM {
        SMALL.transact(&mut connection, n)?;
    }
    let started = Instant::now();
    let mut n = WARM;
    while started.elapsed() < time {
        n += 1;
        SMALL.transact(&mut connection, n)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    ensure!(SMALL.verify(&connection)? == n, "transactions are missing");
    Ok((n - WARM) as f64 / seconds)
}
