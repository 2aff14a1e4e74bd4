//! What values of a stream's commands are taken, on mounts and images.

use anyhow::{Result, bail};
use cowshed_vfs::FallocateFlags;

/// The attribute with a file's capabilities.
pub const CAPABILITIES: &str = "security.capability";
/// The longest value of that attribute, and some.
pub const CAPABILITIES_BYTES_MAX: usize = 64;

/// Numbers of a user and a group that can own a file: the largest stands for none.
pub fn owner(uid: u64, gid: u64) -> Result<(u32, u32)> {
    let number = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    match (number(uid), number(gid)) {
        (Some(uid), Some(gid)) => Ok((uid, gid)),
        _ => bail!("no user {uid} or group {gid} can be"),
    }
}

/// The flags of a fallocate, if what they do is known.
pub fn known_fallocate(mode: u32) -> Result<FallocateFlags> {
    let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
    match FallocateFlags::from_bits(mode).filter(|flags| known.contains(*flags)) {
        Some(flags) => Ok(flags),
        None => bail!("fallocate with mode {mode:#x} is not supported"),
    }
}
