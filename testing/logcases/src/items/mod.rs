//! Logs that the kernel left behind, replayed by the kernel and by us, compared item by item.
//!
//! * [`Crash`]: a volume that the kernel has mounted, and copies of its image at any moment: what a
//!   crash would leave.
//! * [`judge`]: the kernel replays one copy, we another; the trees must be the same, and all checks
//!   must pass on ours.
//! * [`state`]: a subvolume's tree in a form that does not depend on the writer.
//! * [`random`]: random operations with fsyncs, by seed.

mod crash;
pub mod judge;
pub mod random;
pub mod state;
mod writer;

pub use crash::{Crash, volumes};
