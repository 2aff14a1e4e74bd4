//! SQLite on a mount of ours, with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`: transactions go through atomic groups, without a
//! rollback journal.
//!
//! * [`kills`]: the mount's process is killed at random moments; the database must be consistent, and hold every
//!   transaction that was acknowledged.
//! * [`rate`]: transactions per second in a directory, for `cargo xtask bench sqlite`.

pub mod database;
pub mod kills;
pub mod rate;
