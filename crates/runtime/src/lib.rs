//! What every engine takes from the machine: clocks, timers, randomness, threads, locks. Knows no
//! format, does no I/O.
#![deny(missing_docs)]

mod env;
mod event;
pub mod group_commit;
pub mod lock;
mod manual;
mod service;
mod system;
mod time;
mod workers;

pub use env::{Env, FixedEnv, SystemEnv};
pub use event::{Event, Seen};
pub use manual::ManualEnv;
pub use service::{Inbox, Service, Wake};
pub use system::{Body, Thread};
pub use time::Timestamp;
pub use workers::Workers;
