//! Subvolumes: numbering across them, roots, what the kernel left to delete.
