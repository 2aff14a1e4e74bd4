//! SQLite on a mount of ours, with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`: transactions go through
//! atomic groups, without a rollback journal.
//!
//! * [`kills`]: the mount's process, the program that runs SQLite, or both are killed at random
//!   moments; the database must be consistent, and hold every transaction that was acknowledged.
//! * [`full`]: the same on a volume that is full again and again.
//! * [`large`]: the same with transactions that are larger than an atomic group may be.
//! * [`rate`]: transactions per second in a directory, for `cargo xtask bench sqlite`.

pub mod database;
pub mod full;
pub mod grown;
pub mod kills;
pub mod large;
pub mod place;
pub mod rate;
pub mod victim;
pub mod worker;
