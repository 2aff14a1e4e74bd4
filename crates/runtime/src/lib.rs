//! What every engine takes from the machine: clocks, randomness, threads. Knows no format, does no I/O.

mod env;
mod helpers;
mod time;
mod workers;

pub use env::{Env, FixedEnv, SystemEnv};
pub use time::Timestamp;
pub use workers::Workers;
