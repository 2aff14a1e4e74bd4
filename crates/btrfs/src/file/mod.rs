//! File data: extents, dirty ranges, write-back, holes, clones.

/// What a file keeps in memory: its dirty ranges.
#[derive(Debug, Default)]
pub struct FileData {}
