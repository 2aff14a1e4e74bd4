//! Reading a stream, one command at a time.

use std::io::{self, Read};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::attributes::Attributes;
use crate::command::Command;
use crate::decode;
use crate::error::{Error, Result, Site};
use crate::kind::{Kind, Version};
use crate::wire::{COMMAND_HEADER_BYTES, CommandHeader, MAGIC, StreamHeader};

/// The longest command that is read, in bytes, without its header. Linux sends at most 144 KiB: an
/// extent of 128 KiB, and the other attributes.
pub const COMMAND_BYTES_MAX: u64 = 16 << 20;

/// A command that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Where it stands.
    pub site: Site,
    /// The command.
    pub command: Command<'a>,
}

/// Reads streams, several of them if one follows the other. After an error it is of no further use.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Of the stream under way; `None` between streams.
    version: Option<Version>,
    /// Bytes read.
    offset: u64,
    payload: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// A reader at the beginning of a stream. Nothing is read yet.
    pub fn new(input: R) -> Self {
        Self {
            input,
            version: None,
            offset: 0,
            payload: Vec::new(),
        }
    }

    /// Version of the stream that the last command belongs to; `None` before the first command and
    /// after `end`.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The next command; `None` where the input ends between two streams.
    ///
    /// # Errors
    /// Where the input is no sound stream, or ends within one.
    pub fn next_command(&mut self) -> Result<Option<Item<'_>>> {
        let version = match self.version {
            Some(version) => version,
            None => match self.begin()? {
                Some(version) => version,
                None => return Ok(None),
            },
        };
        let offset = self.offset;
        let Some(head) = self.header::<CommandHeader>()? else {
            return Err(Error::MissingEnd { offset });
        };
        let site = Site {
            number: head.number.get(),
            offset,
        };
        self.fill(site, head.len.get().into())?;
        let (stored, computed) = (head.crc.get(), head.checksum(&self.payload));
        if stored != computed {
            return Err(Error::Checksum { site, stored, computed });
        }
        let kind = Kind::from_number(site.number)
            .filter(|kind| kind.since() <= version)
            .ok_or(Error::UnknownCommand { site, version })?;
        let command = Attributes::parse(&self.payload, version)
            .and_then(|has| decode::command(kind, &has))
            .map_err(|kind| Error::Attribute { site, kind })?;
        self.version = (kind != Kind::End).then_some(version);
        Ok(Some(Item { site, command }))
    }

    /// Reads the header of a stream; `None` at the end of the input.
    fn begin(&mut self) -> Result<Option<Version>> {
        let offset = self.offset;
        let head = match self.header::<StreamHeader>() {
            Ok(None) if offset == 0 => return Err(Error::Empty),
            Ok(None) => return Ok(None),
            Ok(Some(head)) if head.magic == MAGIC => head,
            Ok(Some(_)) | Err(Error::TruncatedHeader { .. }) => return Err(Error::NotAStream { offset }),
            Err(error) => return Err(error),
        };
        let found = head.version.get();
        let version = Version::from_number(found).ok_or(Error::UnknownVersion { found, offset })?;
        self.version = Some(version);
        Ok(Some(version))
    }

    /// Reads a structure; `None` where the input ends before it.
    fn header<T: FromBytes + IntoBytes + Immutable + KnownLayout>(&mut self) -> Result<Option<T>> {
        let offset = self.offset;
        let mut header = T::new_zeroed();
        let mut rest = header.as_mut_bytes();
        let len = rest.len();
        while !rest.is_empty() {
            match self.input.read(rest) {
                Ok(0) if rest.len() == len => return Ok(None),
                Ok(0) => return Err(Error::TruncatedHeader { offset }),
                Ok(more) => rest = rest.get_mut(more..).unwrap_or_default(),
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { offset, source }),
            }
        }
        self.advance(len);
        Ok(Some(header))
    }

    /// Reads a command's payload. Memory grows with what is there, not with what a header says.
    fn fill(&mut self, site: Site, len: u64) -> Result<()> {
        if len > COMMAND_BYTES_MAX {
            return Err(Error::TooLarge {
                site,
                found_bytes: len.saturating_add(COMMAND_HEADER_BYTES),
                limit_bytes: COMMAND_BYTES_MAX.saturating_add(COMMAND_HEADER_BYTES),
            });
        }
        self.payload.clear();
        let read = self.input.by_ref().take(len).read_to_end(&mut self.payload);
        self.advance(self.payload.len());
        let read = read.map_err(|source| Error::Io {
            offset: self.offset,
            source,
        })?;
        match len.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX)) {
            0 => Ok(()),
            missing_bytes => Err(Error::Truncated { site, missing_bytes }),
        }
    }

    fn advance(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.offset = self.offset.saturating_add(bytes);
    }
}
