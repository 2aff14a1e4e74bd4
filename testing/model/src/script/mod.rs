//! Scripts: operations as data that name files by path, for runs without a model. What they do is
//! found out by looking.
//!
//! * [`Op`]: one operation. It prints and is read as a line of text (`text`), contents in short
//!   ([`short`]).
//! * [`Player`]: plays on a mount in this process.
//! * [`MountPlayer`]: plays below a directory, as system calls.
//! * [`Desk`]: what a script holds open: files by slot, atomic groups by number.

mod data;
mod desk;
mod forms;
mod library;
mod mount;
mod op;
pub mod short;
mod text;
mod walk;

pub use data::{Data, bytes};
pub use desk::{Counts, Desk};
pub use library::Player;
pub use mount::MountPlayer;
pub use op::{BLOCK_BYTES, How, Kind, Op, Prealloc, Scope, Staged};
pub use text::script;
