//! How an on-disk structure is declared: once, with its size and the places of its fields.

/// Declares an on-disk structure: its size, its fields in their order, and [`Layout`].
///
/// The names of zerocopy's traits must be in scope where it is used.
#[macro_export]
macro_rules! on_disk {
    ($(#[$meta:meta])* $name:ident ($size:literal) { $($(#[$fmeta:meta])* $field:ident: $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(FromBytes, IntoBytes, Unaligned, KnownLayout, Immutable, Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name {
            $(
                #[doc = concat!("`", stringify!($field), "`: see the table of `", stringify!($name), "` in docs/format/.")]
                $(#[$fmeta])*
                pub $field: $ty
            ),+
        }
        const _: () = assert!(size_of::<$name>() == $size);
        impl $crate::Layout for $name {
            const FIELDS: &'static [$crate::FieldLayout] = &[
                $($crate::FieldLayout {
                    name: stringify!($field),
                    offset_bytes: core::mem::offset_of!($name, $field),
                    size_bytes: size_of::<$ty>(),
                }),+
            ];
        }
    };
}

/// Where a field lies in its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLayout {
    /// The field's name, as the format has it.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset_bytes: usize,
    /// Bytes of the field.
    pub size_bytes: usize,
}

/// The fields of an on-disk structure in their order: what the tables of `docs/format/` are
/// compared with.
pub trait Layout {
    /// All fields, in their order on disk.
    const FIELDS: &'static [FieldLayout];
}
