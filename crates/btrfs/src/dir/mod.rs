//! Directories.

/// What a directory keeps in memory.
#[derive(Debug, Default)]
pub struct DirData {}
