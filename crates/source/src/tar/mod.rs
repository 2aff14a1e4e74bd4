//! tar archives: POSIX ustar and PAX, GNU; with extended attributes, access lists, sparse files and
//! hard links; plain or compressed.
//!
//! An archive is read whole before the tree changes, so that the marks of a container layer
//! (whiteouts) are known before its entries are put down. Nothing in an archive is trusted: sizes,
//! names and numbers are checked, lists and headers have limits.

mod acl;
mod apply;
mod header;
mod input;
mod pax;
mod read;
mod sparse;
mod write;

pub(crate) use apply::{Layering, apply};
pub(crate) use input::Input;
pub(crate) use read::{Entry, EntryKind, read_archive};
pub use write::{TarKind, TarWriter};
