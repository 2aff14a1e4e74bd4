//! An independent checker of btrfs volumes.
