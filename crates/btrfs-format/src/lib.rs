//! The btrfs disk format: structures, keys, checksums, verification and rendering. Pure: no I/O.
