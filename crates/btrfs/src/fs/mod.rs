//! The engine as a [`cowshed_vfs::FileSystem`]: translation only.
