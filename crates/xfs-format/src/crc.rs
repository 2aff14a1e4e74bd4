//! The checksum of V5 volumes: CRC-32C of a whole structure, its own field taken as zero.

use zerocopy::little_endian::U32;

/// Bytes of a checksum field.
pub const CRC_BYTES: usize = size_of::<U32>();

/// The checksum of `bytes`, whose checksum field begins at `at_bytes`. `None` where the field does
/// not fit.
pub fn compute(bytes: &[u8], at_bytes: usize) -> Option<u32> {
    let (head, rest) = bytes.split_at_checked(at_bytes)?;
    let (_, tail) = rest.split_at_checked(CRC_BYTES)?;
    let sum = crc32c::crc32c_append(crc32c::crc32c(head), &[0; CRC_BYTES]);
    Some(crc32c::crc32c_append(sum, tail))
}

/// The checksum that `bytes` state at `at_bytes`. Little-endian, unlike all else.
pub fn stored(bytes: &[u8], at_bytes: usize) -> Option<u32> {
    let (field, _) = bytes.get(at_bytes..)?.split_first_chunk::<CRC_BYTES>()?;
    Some(u32::from_le_bytes(*field))
}

/// Computes the checksum and stores it. Does nothing where the field does not fit.
pub fn store(bytes: &mut [u8], at_bytes: usize) {
    let Some(sum) = compute(bytes, at_bytes) else { return };
    if let Some((field, _)) = bytes
        .get_mut(at_bytes..)
        .and_then(|rest| rest.split_first_chunk_mut::<CRC_BYTES>())
    {
        *field = sum.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_does_not_count() {
        let mut bytes = [7; 64];
        store(&mut bytes, 12);
        let sum = stored(&bytes, 12).unwrap();
        assert_eq!(compute(&bytes, 12), Some(sum));
        bytes[12] ^= 1;
        assert_eq!(compute(&bytes, 12), Some(sum));
        bytes[16] ^= 1;
        assert_ne!(compute(&bytes, 12), Some(sum));
        assert_eq!(compute(&bytes, 61), None);
        // The check value of CRC-32C, around a field of zeros.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }
}
