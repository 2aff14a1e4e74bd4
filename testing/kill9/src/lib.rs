//! Kills the mount's process with SIGKILL under load, and looks at what is left.
//!
//! A round: the real `cowshed mount -f` serves an image. One thread works through random operations
//! of the model, one system call each, and knows after which of them a sync was acknowledged;
//! another makes noise in a directory of its own. At a random moment the process is killed. Then:
//!
//! * `btrfs check --check-data-csum` and our own checker find nothing;
//! * the kernel mounts the volume and shows a tree that is the model's after *some* operation, not
//!   before the last acknowledged sync: each transaction is there as a whole or not at all, in
//!   order ([`verify`]);
//! * files hold what the last acknowledged sync of theirs made durable, or blocks of later
//!   versions;
//! * cowshed mounts the same image again, and the next round goes on with it.
//!
//! [`load`] has other loads, SQLite and dbench, and judges what was acknowledged to them.

pub mod daemon;
pub mod history;
pub mod ledger;
pub mod load;
pub mod loader;
pub mod rounds;
pub mod sqlite;
mod tides;
mod verify;

pub use rounds::{Config, run};
