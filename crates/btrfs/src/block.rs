//! Blocks of file data, and rounding to them.

/// Bytes of a block of file data: the sector size of volumes that are written. Volumes with other
/// sectors are only read. What reads, or replays a log in memory, asks for the sector of the volume
/// ([`Files::sector_bytes`](crate::files::Files::sector_bytes), `Tree::sector_bytes`).
pub const BLOCK_BYTES: u32 = 4096;
/// [`BLOCK_BYTES`] as file offsets count.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
/// The largest file, as on the kernel's side: offsets are signed there. Its last block ends one
/// byte behind what a file may hold.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The largest data extent that is made.
pub(crate) const EXTENT_BYTES_MAX: u64 = 128 << 20;

pub(crate) const fn round_down(n: u64) -> u64 {
    n & !(BLOCK - 1)
}
/// Rounds up to blocks. File offsets are below 2^63, so this does not overflow.
pub(crate) const fn round_up(n: u64) -> u64 {
    round_down(n + (BLOCK - 1))
}
