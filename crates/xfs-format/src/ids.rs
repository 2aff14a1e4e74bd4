//! Addresses, inode numbers and log sequence numbers as types of their own.

use std::fmt;

/// A UUID as it lies on disk.
pub type Uuid = [u8; 16];

macro_rules! id_type {
    ($(#[$meta:meta])* $name:ident($raw:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(
            /// The plain number.
            pub $raw,
        );

        impl $name {
            /// The plain number.
            pub const fn get(self) -> $raw {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

id_type!(
    /// The number of an allocation group.
    AgNumber(u32)
);
id_type!(
    /// A block within an allocation group.
    AgBlock(u32)
);
id_type!(
    /// A block of the volume, with the number of its allocation group in the upper bits.
    /// [`crate::Geometry::split`] takes it apart.
    FsBlock(u64)
);
id_type!(
    /// An address on the data device, in units of 512 bytes.
    Daddr(u64)
);
id_type!(
    /// An inode number: allocation group, block and index in one number.
    Ino(u64)
);
id_type!(
    /// An inode number within its allocation group.
    AgIno(u32)
);
id_type!(
    /// A block of a file, counted from its start.
    FileBlock(u64)
);
id_type!(
    /// A block of a directory or of an attribute fork, counted in blocks of the file.
    DaBlock(u32)
);

/// Bytes of a unit of [`Daddr`], and of a block of the log.
pub const BASIC_BLOCK_BYTES: u32 = 512;

impl AgBlock {
    /// What an address field says for "none".
    pub const NULL: u32 = u32::MAX;
}

impl FsBlock {
    /// What an address field says for "none".
    pub const NULL: u64 = u64::MAX;
}

impl Ino {
    /// What a field for an inode number says for "none".
    pub const NULL: u64 = u64::MAX;
}

impl AgIno {
    /// What a field for an inode number says for "none".
    pub const NULL: u32 = u32::MAX;
}

impl Daddr {
    /// Bytes from the start of the device; `None` on overflow.
    pub fn checked_bytes(self) -> Option<u64> {
        self.0.checked_mul(u64::from(BASIC_BLOCK_BYTES))
    }
}

/// A log sequence number: the cycle of the log, and the block of the log in units of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(
    /// The plain number: the cycle in the upper 32 bits.
    pub u64,
);

impl Lsn {
    /// What an LSN field says in blocks that never went through the log.
    pub const NULL: Self = Self(u64::MAX);

    /// From cycle and block.
    pub fn new(cycle: u32, block: u32) -> Self {
        Self(u64::from(cycle) << 32 | u64::from(block))
    }
    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// How often the log had been written from end to end, from 1.
    pub fn cycle(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or_default()
    }
    /// The block of the log.
    pub fn block(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).unwrap_or_default()
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.cycle(), self.block())
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lsn_orders_by_cycle_then_block() {
        let lsn = Lsn::new(3, 77);
        assert_eq!((lsn.cycle(), lsn.block(), lsn.get()), (3, 77, 0x3_0000_004d));
        assert!(Lsn::new(2, u32::MAX) < lsn && lsn < Lsn::new(3, 78));
        assert_eq!(lsn.to_string(), "3:77");
    }

    #[test]
    fn daddrs_are_units_of_512_bytes() {
        assert_eq!(Daddr(8).checked_bytes(), Some(4096));
        assert_eq!(Daddr(u64::MAX).checked_bytes(), None);
    }
}
