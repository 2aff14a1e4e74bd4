//! Random operations on the engine and on a reference model, compared.
//!
//! * [`atomic`]: which cases of atomic groups a run had.
//! * [`subject`]: the engine on devices in memory, spoken to in the model's operations.
//! * [`compare`]: is the file system what the model says, name by name, byte by byte?
//! * [`judge`]: what the checkers and the kernel say of the volume.
//! * [`run`]: one run from a seed; a failing one is cut short before it is shown.
//! * [`tides`]: a small volume, filled and emptied with data and names by turns.
//! * [`threads`]: the same from several threads, each in a directory of its own, while another one
//!   commits.

pub mod atomic;
pub mod compare;
mod fresh;
pub mod judge;
mod open_group;
pub mod run;
mod setup;
mod staged;
pub mod subject;
pub mod threads;
pub mod tides;

pub use run::{Config, Failure, run};
