//! Devices for tests: recording, faulty, counting, and the enumeration of crash images.
//!
//! - [`RecordingDevice`] writes down every write, discard and barrier of one or several devices in
//!   one [`Log`].
//! - [`crash::CrashImages`] turns a log into what may be on the devices after the power failed.
//! - [`CountingDevice`] counts reads and their bytes.
//! - [`FaultyDevice`] lets I/O fail, lie, or take its time, at a chosen moment.
//!
//! Everything is a function of its inputs and a seed; [`Rng`] is the only source of chance.

mod counting;
pub mod crash;
mod faulty;
mod recording;
mod rng;

pub use counting::{CountingDevice, ReadCounts};
pub use faulty::{Counts, Fault, FaultKind, FaultPlan, FaultyDevice, On, Repeat};
pub use recording::{DeviceIndex, Event, Log, RecordingDevice};
pub use rng::Rng;
