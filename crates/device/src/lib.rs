//! Block devices: files, memory, slices of a device; batched I/O, flush and discard.
//!
//! The currency is `Arc<dyn BlockDevice>`: what lies above never asks what lies below. All I/O is
//! positioned, exact (all of it or an error) and may be issued from many threads at once. A write
//! is *durable* only after a later [`BlockDevice::flush`] has returned without error; until then a
//! crash may lose it, tear it or let it overtake another write.
//!
//! Nothing here caches, and nothing here demands alignment; I/O in whole, aligned sectors is what
//! devices like.

mod block_device;
mod error;
mod file;
mod mem;
mod mounted;
mod open_mode;
mod slice;
mod sys;

pub use block_device::{BlockDevice, ReadOp, WriteOp, check_access};
pub use error::{Error, Op, Result};
pub use file::{FileDevice, Locking};
pub use mem::MemDevice;
pub use open_mode::OpenMode;
pub use slice::SliceDevice;
