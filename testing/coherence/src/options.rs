//! What a run is asked, and what it tells.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use cowshed_harness::Keep;

use crate::variant::Variant;

/// How often an operation was done, how often it failed, and by which errors.
pub type Counts = BTreeMap<String, (u64, u64, BTreeMap<String, u64>)>;

/// How much is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    pub variants: Vec<Variant>,
    /// Of the first volume.
    pub seed: u64,
    pub rounds: u64,
    /// Rounds on one volume.
    pub rounds_per_volume: u64,
    pub workers: u64,
    pub threads: u64,
    /// Of the work in a round, at most.
    pub millis: u64,
    pub is_verbose: bool,
    /// The command under test, and the one that starts workers.
    pub cowshed: PathBuf,
    pub own: PathBuf,
    /// Where failures are kept.
    pub keep: Keep,
    pub keep_dir: PathBuf,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Report {
    pub volumes: u64,
    pub rounds: u64,
    /// That were looked at, over all rounds.
    pub objects: u64,
    /// Objects of which Linux had counted a link less.
    pub link_less: u64,
    pub operations: Counts,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.operations.values().map(|count| count.0).sum();
        let failed: u64 = self.operations.values().map(|count| count.1).sum();
        write!(
            f,
            "{} volumes, {} rounds, {all} operations ({failed} refused), {} objects compared, Linux \
             had counted a link less of {}",
            self.volumes, self.rounds, self.objects, self.link_less
        )
    }
}
