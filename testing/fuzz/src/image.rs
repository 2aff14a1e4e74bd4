//! A damaged volume.

use std::sync::Arc;

use cowshed_device::{BlockDevice, MemDevice};

/// A damaged volume.
pub struct Image {
    pub devices: Vec<Arc<MemDevice>>,
    /// As the volume's readers see them: a device may have been cut short.
    pub visible: Vec<Arc<dyn BlockDevice>>,
    pub description: String,
}
