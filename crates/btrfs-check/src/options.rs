//! What a caller may ask of a check, and how it follows the progress.

use std::fmt;

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Trees: bytes of tree blocks read; their total is not known before.
    Trees,
    /// Data against checksums: bytes done and in all.
    Data,
}

/// Called now and then, from the checking thread.
pub trait Progress: Sync {
    /// `total_bytes` is 0 where it is not known.
    fn update(&self, phase: Phase, done_bytes: u64, total_bytes: u64);
}

/// How to check.
#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Read all data, every copy, and compare it with its checksums.
    pub data_csums: bool,
    /// How many findings of each id are kept; all are counted.
    pub kept_per_id_max: u64,
    /// How many threads compare data with checksums; everything else is done by the calling thread.
    pub threads: usize,
    /// Told how far the check is.
    pub progress: Option<&'a dyn Progress>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            data_csums: false,
            kept_per_id_max: 100,
            threads: 1,
            progress: None,
        }
    }
}

impl fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("data_csums", &self.data_csums)
            .field("kept_per_id_max", &self.kept_per_id_max)
            .finish_non_exhaustive()
    }
}
