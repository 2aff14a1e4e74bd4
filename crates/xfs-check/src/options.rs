//! What a caller may ask of a check, and how it follows the progress.

use std::fmt;
use std::sync::Arc;

use cowshed_device::BlockDevice;

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Headers and B-trees of allocation groups: groups done and in all.
    Groups,
    /// Inodes with forks, entries and attributes: chunks of inodes done and in all.
    Inodes,
    /// Claims on blocks, links: groups done and in all.
    Claims,
}

/// Called now and then, from any of the checking threads.
pub trait Progress: Sync {
    /// So many of so many units of the phase are done.
    fn update(&self, phase: Phase, done: u64, total: u64);
}

/// Gives a device that shows the state after the log was replayed. The error says why it cannot.
pub type Replay<'a> = &'a (dyn Fn() -> Result<Arc<dyn BlockDevice>, String> + Sync);

/// Bytes in memory for extents and entries, unless options say otherwise.
const MEMORY_BYTES: usize = 512 << 20;

/// How to check.
#[derive(Clone)]
pub struct CheckOptions<'a> {
    /// How many findings of each id are kept; all are counted.
    pub kept_per_id_max: u64,
    /// How many allocation groups are read at once.
    pub threads: usize,
    /// Bytes in memory for extents and entries, about; more goes to a temporary file in the directory
    /// that the environment names (TMPDIR).
    pub memory_bytes: usize,
    /// Told how far the check is.
    pub progress: Option<&'a dyn Progress>,
    /// The device of an external log. Without it such a log is not judged.
    pub log_device: Option<Arc<dyn BlockDevice>>,
    /// Called where the log is dirty: the state after it is checked. Without it the volume is
    /// checked as it lies, and what the log would mend is reported.
    pub replay: Option<Replay<'a>>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            kept_per_id_max: 100,
            threads: 1,
            memory_bytes: MEMORY_BYTES,
            progress: None,
            log_device: None,
            replay: None,
        }
    }
}

impl fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("kept_per_id_max", &self.kept_per_id_max)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
