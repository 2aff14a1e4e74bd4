//! Numbers in the byte order of the machine that wrote the log.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The byte order of a log's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// x86, arm64, riscv.
    Little,
    /// s390x, sparc, old IRIX.
    Big,
}

macro_rules! native {
    ($(#[$meta:meta])* $name:ident($raw:ty)) => {
        $(#[$meta])*
        #[derive(FromBytes, IntoBytes, Unaligned, KnownLayout, Immutable, Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[repr(C)]
        pub struct $name([u8; size_of::<$raw>()]);

        impl $name {
            /// The number, in its order of bytes.
            pub const fn get(self, order: ByteOrder) -> $raw {
                match order {
                    ByteOrder::Little => <$raw>::from_le_bytes(self.0),
                    ByteOrder::Big => <$raw>::from_be_bytes(self.0),
                }
            }
            /// From a number.
            pub const fn new(value: $raw, order: ByteOrder) -> Self {
                match order {
                    ByteOrder::Little => Self(value.to_le_bytes()),
                    ByteOrder::Big => Self(value.to_be_bytes()),
                }
            }
        }
    };
}

native!(
    /// 16 bits in the writer's order.
    N16(u16)
);
native!(
    /// 32 bits in the writer's order.
    N32(u32)
);
native!(
    /// 64 bits in the writer's order.
    N64(u64)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_come_back() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            assert_eq!(N64::new(0x0102, order).get(order), 0x0102);
        }
        assert_eq!(N16::new(0x0102, ByteOrder::Big).as_bytes(), [1, 2]);
        assert_eq!(N32::new(0x0102, ByteOrder::Little).as_bytes(), [2, 1, 0, 0]);
    }
}
