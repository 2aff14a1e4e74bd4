//! XFS volumes of the kernel on image files, and trees that have every form of the format.

mod fill;
mod volume;

pub use fill::{Fill, fill};
pub use volume::{XfsMounted, XfsOptions, XfsVolume};
