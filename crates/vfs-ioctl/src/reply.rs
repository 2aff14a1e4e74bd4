//! Arguments and answers of ioctls.

use cowshed_vfs::{Error, IoctlReply, Result};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Copies the answer out. Errors: `Invalid` (no room for it).
pub(crate) fn reply(output: &mut [u8], bytes: &[u8]) -> Result<IoctlReply> {
    let room = output.get_mut(..bytes.len()).ok_or(Error::Invalid)?;
    room.copy_from_slice(bytes);
    Ok(IoctlReply {
        result: 0,
        out_bytes: bytes.len(),
    })
}

/// The argument of a call. Errors: `Invalid` (it is too short).
pub(crate) fn argument<T: FromBytes + KnownLayout + Immutable + Unaligned>(input: &[u8]) -> Result<&T> {
    T::ref_from_prefix(input)
        .map(|(call, _)| call)
        .map_err(|_| Error::Invalid)
}
