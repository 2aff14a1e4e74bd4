//! The btrfs engine: volumes, trees, transactions, files.
