//! A reference file system in maps, and the operations that tests apply to it.
