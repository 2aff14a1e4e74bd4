//! A damaged volume.

use std::sync::Arc;

use cowshed_device::{BlockDevice, MemDevice, SliceDevice};

/// A damaged volume.
pub struct Image {
    pub devices: Vec<Arc<MemDevice>>,
    /// As the volume's readers see them: a device may have been cut short.
    pub visible: Vec<Arc<dyn BlockDevice>>,
    pub description: String,
}

impl Image {
    /// `cut`: which device ends early, and where.
    pub(crate) fn new(devices: Vec<Arc<MemDevice>>, cut: Option<(usize, u64)>, description: String) -> Image {
        let visible = devices.iter().enumerate().map(|(index, device)| match cut {
            Some((at, bytes)) if at == index => {
                let whole: Arc<dyn BlockDevice> = device.clone();
                Arc::new(SliceDevice::new(whole, 0, bytes).expect("shorter than the device")) as Arc<dyn BlockDevice>
            }
            _ => device.clone() as Arc<dyn BlockDevice>,
        });
        Image {
            visible: visible.collect(),
            devices,
            description,
        }
    }
}
