//! Structures in bytes that were verified, and in bytes that were not.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Reads a fixed structure at a place of unverified bytes.
pub(crate) fn at<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8], at_bytes: usize) -> Option<&T> {
    T::ref_from_prefix(bytes.get(at_bytes..)?).ok().map(|(value, _)| value)
}

/// Reads `count` structures that follow each other.
pub(crate) fn slice<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
    at_bytes: usize,
    count: usize,
) -> Option<&[T]> {
    let rest = bytes.get(at_bytes..)?;
    <[T]>::ref_from_prefix_with_elems(rest, count)
        .ok()
        .map(|(values, _)| values)
}

/// Copies bytes to a place of a block under construction. False where they do not fit.
#[must_use]
pub(crate) fn put(block: &mut [u8], at_bytes: usize, value: &[u8]) -> bool {
    let place = block.get_mut(at_bytes..).and_then(|rest| rest.get_mut(..value.len()));
    match place {
        Some(place) => {
            place.copy_from_slice(value);
            true
        }
        None => false,
    }
}
