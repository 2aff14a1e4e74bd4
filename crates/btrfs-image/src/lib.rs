//! Making btrfs volumes: mkfs.
