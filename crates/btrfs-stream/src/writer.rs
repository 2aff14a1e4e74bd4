//! Writing a stream, one command at a time.

use std::io::Write;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::command::Command;
use crate::encode::Payload;
use crate::error::WriteError;
use crate::kind::{Attribute, Kind, Version};
use crate::reader::COMMAND_BYTES_MAX;
use crate::wire::{CommandHeader, MAGIC, StreamHeader};

/// Writes one stream. Each command reaches the output in one call; it is not flushed.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    version: Version,
    payload: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes the header of a stream.
    ///
    /// # Errors
    /// Those of the output.
    pub fn new(mut output: W, version: Version) -> Result<Self, WriteError> {
        let head = StreamHeader {
            magic: MAGIC,
            version: version.number().into(),
        };
        output.write_all(head.as_bytes())?;
        Ok(Self::continued(output, version))
    }

    /// A writer behind commands that are already there: no header is written.
    pub fn continued(output: W, version: Version) -> Self {
        Self {
            output,
            version,
            payload: Vec::new(),
        }
    }

    /// The version of the stream.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Writes a command, [`Command::End`] included: a stream is complete with it alone.
    ///
    /// # Errors
    /// `NotInVersion` and `TooLong`, after which the stream is as before the call; those of the
    /// output, after which it may have a part of the command.
    pub fn write(&mut self, command: &Command<'_>) -> Result<(), WriteError> {
        let (kind, version) = (command.kind(), self.version);
        let what = match command {
            _ if kind.since() > version => Some("the command"),
            Command::Utimes { otime: Some(_), .. } if version < Version::V2 => Some("otime"),
            _ => None,
        };
        if let Some(what) = what {
            return Err(WriteError::NotInVersion { kind, what, version });
        }
        self.payload.clear();
        self.payload.resize(size_of::<CommandHeader>(), 0);
        Payload {
            bytes: &mut self.payload,
            kind,
            version,
        }
        .command(command)?;
        self.seal(kind)?;
        self.output.write_all(&self.payload)?;
        Ok(())
    }

    /// Fills in the header.
    fn seal(&mut self, kind: Kind) -> Result<(), WriteError> {
        let Some((head_bytes, payload)) = self.payload.split_at_mut_checked(size_of::<CommandHeader>()) else {
            return Ok(());
        };
        let len = match u32::try_from(payload.len()) {
            Ok(len) if u64::from(len) <= COMMAND_BYTES_MAX => len,
            _ => {
                return Err(WriteError::TooLong {
                    kind,
                    attribute: Attribute::Data,
                    found_bytes: payload.len(),
                    limit_bytes: usize::try_from(COMMAND_BYTES_MAX).unwrap_or(usize::MAX),
                });
            }
        };
        let mut head = CommandHeader {
            len: len.into(),
            number: kind.number().into(),
            crc: U32::ZERO,
        };
        head.crc = head.checksum(payload).into();
        head_bytes.copy_from_slice(head.as_bytes());
        Ok(())
    }

    /// The output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.output
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.output
    }
}
