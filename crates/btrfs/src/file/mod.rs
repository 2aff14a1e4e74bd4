//! File data: extents, dirty ranges, write-back, holes, clones.

/// What a file keeps in memory: its dirty ranges.
#[derive(Debug, Default)]
pub struct FileData {}

/// Writes all dirty data of all files back.
pub fn write_back_all(_engine: &crate::Engine) -> crate::Result<()> {
    Ok(())
}
