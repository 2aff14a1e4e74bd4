//! An exchange of two ranges, as it is asked of a mount of ours and of the kernel.

use cowshed_vfs::Freshness;

/// What to exchange, in bytes.
pub struct Exchange {
    pub a_offset: u64,
    pub b_offset: u64,
    pub len_bytes: u64,
    pub to_eof: bool,
    /// Only what is written in the first file.
    pub only_written: bool,
    /// Only if the second file is still as it was then.
    pub fresh_b: Option<Freshness>,
    pub dry_run: bool,
    /// Durable when the call returns.
    pub sync: bool,
}
