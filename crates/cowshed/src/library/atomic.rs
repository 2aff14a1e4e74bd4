//! Writes that appear all or not at all.

use std::fmt;
use std::sync::Arc;

use cowshed_vfs::{Error as Errno, Group, Handle, OpenFlags, WriteFlags};

use super::node::Shared;
use super::{Error, File, Result, Volume};

/// A group of writes to one file or several that appears as a whole or not at all: to readers, and
/// after a crash at any moment. Dropping it drops the writes.
///
/// The group lies in memory until its end. It holds whole blocks of 4096 bytes as they were at its
/// first write into them: what others write into these blocks before the group ends is overwritten.
///
/// ```no_run
/// # fn main() -> cowshed::Result<()> {
/// # let volume = cowshed::Volume::open_image("image", &cowshed::OpenOptions::new())?;
/// let (from, to) = (volume.open("accounts/1")?, volume.open("accounts/2")?);
/// let mut group = volume.atomic();
/// group.write_at(&from, 0, b"90")?;
/// group.write_at(&to, 0, b"110")?;
/// group.commit()?; // both, durably, or neither
/// # Ok(())
/// # }
/// ```
pub struct AtomicWrites {
    shared: Arc<Shared>,
    group: cowshed_vfs::Result<Box<dyn Group>>,
}

impl Volume {
    /// Begins a group of writes that appears as a whole or not at all.
    pub fn atomic(&self) -> AtomicWrites {
        let shared = self.root().node().shared().clone();
        let group = shared.fs.clone().begin_group();
        AtomicWrites { shared, group }
    }
}

impl AtomicWrites {
    /// Adds a write of all of `data` at an offset in bytes.
    ///
    /// # Errors
    /// The file is not opened for writing or of another volume, no space, more than 256 MiB in open
    /// groups. The group is then as before.
    pub fn write_at(&mut self, file: &File, offset_bytes: u64, data: &[u8]) -> Result<()> {
        let mut run = || {
            if !Arc::ptr_eq(file.node().shared(), &self.shared) {
                return Err(Errno::CrossDevice);
            }
            if !file.flags().contains(OpenFlags::WRITE) {
                return Err(Errno::BadHandle);
            }
            let group = self.group.as_mut().map_err(|error| *error)?;
            let (node, none) = (file.node().id(), WriteFlags::empty());
            group.write(&self.shared.ctx, node, offset_bytes, data, none)
        };
        run().map_err(Error::at(file.path()))
    }

    /// Makes the group happen, durably: after this it is there whatever happens.
    ///
    /// # Errors
    /// No space for the metadata, or a device failed before the group was written: then nothing of
    /// it has happened. A device failed afterwards: then the volume is read-only, and has the group
    /// or has it not when it is opened again.
    pub fn commit(self) -> Result<()> {
        let group = self.group.map_err(Error::at("/"))?;
        Ok(group.commit(Handle::NONE)?)
    }
}

impl fmt::Debug for AtomicWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicWrites").finish_non_exhaustive()
    }
}
