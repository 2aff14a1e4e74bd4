//! The crash machine: what a volume looks like after the power failed, and after a device failed.
//!
//! * [`power`]: runs operations on recorded devices, makes the legal crash images of the run, and
//!   judges each: the checker finds nothing, and the files are exactly those of one committed
//!   state, not older than the last acknowledged sync. [`kernel`] lets Linux judge a sample of the
//!   same images. What holds with a log as with commits, from whatever state the volume is opened,
//!   is in [`promise`].
//! * [`groups`]: the same over block groups that come and go on a small volume.
//! * [`open_groups`]: atomic groups that stay open between the operations of a run, several at a
//!   time.
//! * [`faults`]: the n-th I/O of a run fails, for every n. An error or the right answer, never a
//!   wrong one.
//!
//! * [`barriers`]: what each barrier of a run is for; without one of them, images must be found
//!   broken.
//!
//! All work in memory and follow from a seed; where a run has several threads
//! ([`threads::Threads`]), they run free.

pub mod barriers;
mod beside;
pub mod chosen;
pub mod compressed;
pub mod discards;
mod draw;
pub mod faults;
mod full;
pub mod groups;
mod habits;
mod image;
pub mod kernel;
mod links;
pub mod noted;
mod open_groups;
pub mod power;
pub mod promise;
pub mod rig;
mod rounds;
pub mod run;
mod several;
mod shared;
mod snapshots;
pub mod threads;
pub mod workload;

pub use image::load_image;
