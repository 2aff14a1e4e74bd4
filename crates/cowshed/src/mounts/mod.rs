//! Many mounts of one volume by one process: docs/design/many-mounts.md.
//!
//! [`place`] finds the socket of a volume, [`wire`] is what is said over it, [`join`] the side of a
//! later mount, [`serve`] that of the process that has the volume.

pub mod join;
pub mod place;
pub mod serve;
pub mod source;
pub mod wire;
