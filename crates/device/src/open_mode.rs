//! What a device is opened for.

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads only; the device refuses everything that changes it.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}
