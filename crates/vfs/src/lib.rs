//! The contract between a file system and the front ends that serve it.
