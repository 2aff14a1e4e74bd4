//! Serves a vfs file system through the FUSE protocol.

pub mod proto;
