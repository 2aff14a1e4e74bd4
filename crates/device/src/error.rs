//! What can go wrong at a device. Each message names the device and, where there is one, the place
//! on it.

use std::fmt;
use std::io;
use std::sync::Arc;

pub type Result<T> = std::result::Result<T, Error>;

/// What was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Open,
    Read,
    Write,
    Flush,
    Discard,
}

impl Op {
    /// Whether the operation needs a device that may be written.
    pub fn changes(self) -> bool {
        match self {
            Op::Write | Op::Discard => true,
            Op::Open | Op::Read | Op::Flush => false,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        })
    }
}

/// The message already holds the operating system's reason, therefore [`std::error::Error::source`]
/// is `None`: the reason is printed once, by `{}` as well as by printers that walk the chain
/// (`{:#}` of anyhow).
#[derive(Clone, Debug)]
pub enum Error {
    /// The device or the file behind it failed. `offset_bytes` is 0 where the operation has no
    /// place (open, flush).
    Io {
        device: Arc<str>,
        op: Op,
        offset_bytes: u64,
        source: Arc<io::Error>,
    },
    /// The device is open elsewhere in a way that excludes this opening: by another writer, by a
    /// mount, or by a reader when this one writes.
    Busy { device: Arc<str> },
    /// A change of a device that was opened read-only.
    ReadOnly { device: Arc<str>, op: Op },
    /// The range is not, or not entirely, within the device.
    OutOfRange {
        device: Arc<str>,
        op: Op,
        offset_bytes: u64,
        len_bytes: u64,
        size_bytes: u64,
    },
    /// The path names neither a regular file nor a block device.
    NotABlockDevice { device: Arc<str>, found: &'static str },
}

impl Error {
    pub fn io(device: &str, op: Op, offset_bytes: u64, source: io::Error) -> Self {
        Error::Io {
            device: device.into(),
            op,
            offset_bytes,
            source: Arc::new(source),
        }
    }

    /// Which device complains.
    pub fn device(&self) -> &str {
        match self {
            Error::Io { device, .. }
            | Error::Busy { device }
            | Error::ReadOnly { device, .. }
            | Error::OutOfRange { device, .. }
            | Error::NotABlockDevice { device, .. } => device,
        }
    }

    /// The operating system's error, if it was one.
    pub fn os_error(&self) -> Option<&io::Error> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Busy { .. } | Error::ReadOnly { .. } | Error::OutOfRange { .. } | Error::NotABlockDevice { .. } => {
                None
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io {
                device,
                op: op @ (Op::Open | Op::Flush),
                source,
                ..
            } => {
                write!(f, "{device}: {op} failed: {source}")
            }
            Error::Io {
                device,
                op: op @ (Op::Read | Op::Write | Op::Discard),
                offset_bytes,
                source,
            } => {
                write!(f, "{device}: {op} at byte {offset_bytes} failed: {source}")
            }
            Error::Busy { device } => write!(f, "{device}: busy: it is mounted or open elsewhere"),
            Error::ReadOnly { device, op } => write!(f, "{device}: {op} refused: the device is open read-only"),
            Error::OutOfRange {
                device,
                op,
                offset_bytes,
                len_bytes,
                size_bytes,
            } => write!(
                f,
                "{device}: {op} of {len_bytes} bytes at byte {offset_bytes} is beyond the device's {size_bytes} bytes"
            ),
            Error::NotABlockDevice { device, found } => {
                write!(f, "{device}: is {found}, expected a regular file or a block device")
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_printed_once() {
        let error = Error::io("disk0", Op::Read, 4096, io::Error::from_raw_os_error(libc::EIO));
        let plain = format!("{error}");
        let chain = format!("{:#}", anyhow::Error::new(error));
        assert_eq!(plain, chain);
        assert_eq!(plain.matches("os error 5").count(), 1, "{plain}");
        assert!(plain.starts_with("disk0: read at byte 4096 failed: "), "{plain}");
    }
}
