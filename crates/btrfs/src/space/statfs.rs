//! What `statfs` says of space.

use super::Space;
use super::ledger::Pool;

/// Bytes as `df` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStat {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub available_bytes: u64,
}

impl Space {
    /// Total, free and available bytes.
    pub fn stat(&self) -> SpaceStat {
        let _ = self.ledger.pool(Pool::Data);
        SpaceStat::default()
    }
}
