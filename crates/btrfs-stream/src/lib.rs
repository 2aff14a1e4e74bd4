//! Send streams of btrfs: what `btrfs send` makes and `btrfs receive` plays.
//!
//! A stream is a header and a sequence of commands, each with a checksum of its own:
//! docs/format/send-stream.md. [`Reader`] gives the commands of a stream, or the error of the first
//! one that is not sound; [`Writer`] writes them. Versions 1 and 2.
//!
//! Pure: no I/O beyond [`std::io::Read`] and [`std::io::Write`], no panic on any input, and memory
//! for one command of at most [`COMMAND_BYTES_MAX`].
//!
//! ```
//! use btrfs_stream::{Command, Reader, Version, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), Version::V1)?;
//! writer.write(&Command::Subvol { path: b"home", uuid: [7; 16], ctransid: 9 })?;
//! writer.write(&Command::End)?;
//! let stream = writer.into_inner();
//!
//! let mut reader = Reader::new(&stream[..]);
//! let first = reader.next_command()?.expect("a command");
//! assert_eq!(first.command.path(), Some(&b"home"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

mod attributes;
mod command;
mod decode;
mod encode;
mod error;
mod kind;
mod reader;
mod wire;
mod writer;

pub use command::{Command, Node, Time, compression};
pub use error::{AttributeError, Error, Result, Site, WriteError};
pub use kind::{Attribute, Kind, Version};
pub use reader::{COMMAND_BYTES_MAX, Item, Reader};
pub use writer::Writer;
