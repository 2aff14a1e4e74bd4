//! Counts of what subvolumes use, between two calls.

use cowshed_vfs::{SubvolumeUsage, UsageCount};

/// A count that is under way or done.
pub(crate) struct Count {
    pub(crate) walk: Box<dyn UsageCount>,
    /// The results, where it is done.
    pub(crate) found: Option<Vec<SubvolumeUsage>>,
}
