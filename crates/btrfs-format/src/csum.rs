//! The four checksums of tree blocks, superblocks and file data.

/// `btrfs_csum_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChecksumType {
    /// CRC-32C, 4 bytes: the default.
    Crc32c,
    /// xxHash with 64 bits, 8 bytes.
    Xxhash64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b with 256 bits, 32 bytes.
    Blake2b,
}

/// Bytes of the checksum at the head of superblocks and tree blocks; docs/format/tree-blocks.md.
pub const CSUM_FIELD_BYTES: usize = 32;
/// A checksum, zero padded to the bytes that headers hold.
pub type Checksum = [u8; CSUM_FIELD_BYTES];

impl ChecksumType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::Xxhash64, Self::Sha256, Self::Blake2b];

    /// `None` for a type that the format does not define.
    pub const fn from_raw(raw: u16) -> Option<Self> {
        match raw {
            0 => Some(Self::Crc32c),
            1 => Some(Self::Xxhash64),
            2 => Some(Self::Sha256),
            3 => Some(Self::Blake2b),
            _ => None,
        }
    }

    /// The number that the superblock states.
    pub const fn to_raw(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// The name, as `/sys/fs/btrfs` and dumps write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// How many bytes a checksum takes in the csum tree.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// The checksum of `bytes`.
    pub fn compute(self, bytes: &[u8]) -> Checksum {
        use blake2::Digest as _;
        let mut sum = [0; 32];
        match self {
            Self::Crc32c => sum[..4].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes()),
            Self::Xxhash64 => sum[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(bytes, 0).to_le_bytes()),
            Self::Sha256 => sum.copy_from_slice(&sha2::Sha256::digest(bytes)),
            Self::Blake2b => {
                sum.copy_from_slice(&blake2::Blake2b::<blake2::digest::consts::U32>::digest(bytes));
            }
        }
        sum
    }
}
