//! A device that writes down what is done to it.
//!
//! One mutex, the log's, is held across each write and flush and the entry that it leaves.
//! Therefore the log is the order in which things happened, of several devices and many threads
//! too, and what stands before a barrier was complete when the barrier began.

use std::sync::Arc;

use cowshed_device::{BlockDevice, Result};
use parking_lot::Mutex;

/// Which of the devices that share a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub usize);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write {
        device: DeviceIndex,
        offset_bytes: u64,
        data: Arc<[u8]>,
    },
    Discard {
        device: DeviceIndex,
        offset_bytes: u64,
        len_bytes: u64,
    },
    /// A flush returned without error: all writes to this device that stand before are durable.
    Barrier { device: DeviceIndex },
    /// Something that the test wants to find again, such as "fsync of file 3 returned".
    Mark { id: u64 },
}

#[derive(Debug, Default)]
struct Inner {
    events: Vec<Event>,
    devices: usize,
}

/// The log. Clones are the same log.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Inner>>);

impl Log {
    pub fn new() -> Log {
        Log::default()
    }

    /// Wraps a device; devices are numbered in the order of these calls.
    pub fn record(&self, below: Arc<dyn BlockDevice>) -> RecordingDevice {
        let mut inner = self.0.lock();
        let index = DeviceIndex(inner.devices);
        inner.devices += 1;
        RecordingDevice {
            below,
            index,
            log: self.clone(),
        }
    }

    pub fn mark(&self, id: u64) {
        self.0.lock().events.push(Event::Mark { id });
    }

    /// The number of events until now.
    pub fn len(&self) -> usize {
        self.0.lock().events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.lock().events.clone()
    }

    /// Hands the events out and starts anew, with the same devices.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().events)
    }
}

/// Passes everything on and leaves each successful change in the log. A write that fails is logged
/// too, since any part of it may have been done.
#[derive(Debug)]
pub struct RecordingDevice {
    below: Arc<dyn BlockDevice>,
    index: DeviceIndex,
    log: Log,
}

impl RecordingDevice {
    pub fn index(&self) -> DeviceIndex {
        self.index
    }
}

impl BlockDevice for RecordingDevice {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn sector_size_bytes(&self) -> u32 {
        self.below.sector_size_bytes()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset_bytes, buf)
    }

    // Vectored and batched writes come here piece by piece: the pieces may reach the disk in any
    // order.
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        cowshed_device::check_access(self, cowshed_device::Op::Write, offset_bytes, buf.len() as u64)?;
        let mut log = self.log.0.lock();
        let done = self.below.write_at(offset_bytes, buf);
        if !buf.is_empty() {
            log.events.push(Event::Write {
                device: self.index,
                offset_bytes,
                data: buf.into(),
            });
        }
        done
    }

    fn flush(&self) -> Result<()> {
        let mut log = self.log.0.lock();
        self.below.flush()?;
        log.events.push(Event::Barrier { device: self.index });
        Ok(())
    }

    fn discard_granularity_bytes(&self) -> Option<u64> {
        self.below.discard_granularity_bytes()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        let mut log = self.log.0.lock();
        self.below.discard(offset_bytes, len_bytes)?;
        log.events.push(Event::Discard {
            device: self.index,
            offset_bytes,
            len_bytes,
        });
        Ok(())
    }
}
