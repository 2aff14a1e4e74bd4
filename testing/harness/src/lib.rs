//! Tests against the kernel and btrfs-progs: loop devices, mounts, comparisons.
