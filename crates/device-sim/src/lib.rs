//! Devices for tests: recording, faulty, slow, and the enumeration of crash images.
//!
//! - [`RecordingDevice`] writes down every write, discard and barrier of one or several devices in one [`Log`].
//! - [`crash::CrashImages`] turns a log into what may be on the devices after the power failed.
//! - [`FaultyDevice`] lets I/O fail, or lie, at a chosen moment.
//! - [`SlowDevice`] takes its time for each write.
//!
//! Everything is a function of its inputs and a seed; [`Rng`] is the only source of chance.

pub mod crash;
mod faulty;
mod recording;
mod rng;
mod slow;

pub use faulty::{Counts, Fault, FaultKind, FaultPlan, FaultyDevice, On, Repeat};
pub use recording::{DeviceIndex, Event, Log, RecordingDevice};
pub use rng::Rng;
pub use slow::SlowDevice;
