//! What goes into an image: a tree of inodes, merged from sources that are laid over each other.
//!
//! A source is a directory of the host, a tar archive or a container image. Each adds its entries
//! to a [`Tree`]; later ones win. The tree holds all metadata; contents stay where they are, and
//! are read from any thread, at any offset ([`Content::open`]). A compressed archive, or one from a
//! pipe, is read once, and its contents are kept in a temporary file without a name.
//!
//! Nothing here knows a disk format, and nothing depends on the order in which a directory is
//! listed: names are sorted.
#![deny(missing_docs)]

mod add;
mod blob;
mod checks;
mod content;
mod dir;
mod error;
mod named;
mod oci;
mod oci_out;
mod platform;
mod reading;
mod spool;
#[allow(
    unsafe_code,
    reason = "extended attributes by the C library, whose calls fakeroot replaces"
)]
#[cfg(target_os = "linux")]
mod sys;
#[cfg(not(target_os = "linux"))]
#[path = "sys_other.rs"]
mod sys;
mod tar;
mod tree;

pub use add::{add_source, add_stream};
pub use content::{Content, Opened, Piece};
pub use dir::add_directory;
pub use error::{Error, Result};
pub use oci_out::{OciWriter, Stopped, Target, remove_unfinished_layouts};
pub use platform::Platform;
pub use reading::Reading;
pub use tar::{TarKind, TarWriter};
pub use tree::{Body, Inode, InodeId, Keep, Meta, Time, Tree, Xattr, perm};
