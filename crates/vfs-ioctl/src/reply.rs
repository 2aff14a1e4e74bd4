//! Answers of ioctls.

use cowshed_vfs::{Error, IoctlReply, Result};

/// Copies the answer out. Errors: `Invalid` (no room for it).
pub(crate) fn reply(output: &mut [u8], bytes: &[u8]) -> Result<IoctlReply> {
    let room = output.get_mut(..bytes.len()).ok_or(Error::Invalid)?;
    room.copy_from_slice(bytes);
    Ok(IoctlReply {
        result: 0,
        out_bytes: bytes.len(),
    })
}
