//! What recovery changed, in memory, in front of a device that stays as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cowshed_device::{BlockDevice, Op, ReadOp, Result, check_access};

/// Bytes of a page: what is kept of the device around a change.
const PAGE_BYTES: u64 = 4096;

/// A device with changed pages in front of it. Reads see the changes; the device is never written.
pub(crate) struct Overlay {
    below: Arc<dyn BlockDevice>,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay({} pages over {:?})", self.pages.len(), self.below)
    }
}

impl Overlay {
    pub(crate) fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self {
            below,
            pages: BTreeMap::new(),
        }
    }

    /// Bytes of memory that the changes take.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// The changed pages with their addresses in bytes: what recovery would write.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(page, bytes)| (page * PAGE_BYTES, &**bytes))
    }

    /// Changes bytes. Errors: a range that leaves the device, and what reading the rest of its
    /// pages says.
    pub(crate) fn put(&mut self, offset_bytes: u64, data: &[u8]) -> Result<()> {
        check_access(self, Op::Read, offset_bytes, data.len() as u64)?;
        let (mut at, mut rest) = (offset_bytes, data);
        while !rest.is_empty() {
            let (page, within) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let size = PAGE_BYTES.min(self.below.size_bytes() - page * PAGE_BYTES);
            let bytes = match self.pages.entry(page) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let mut bytes = vec![0; size as usize];
                    self.below.read_at(page * PAGE_BYTES, &mut bytes)?;
                    entry.insert(bytes.into())
                }
            };
            let take = (size - within).min(rest.len() as u64) as usize;
            let (head, behind) = rest.split_at(take);
            if let Some(place) = bytes.get_mut(within as usize..within as usize + take) {
                place.copy_from_slice(head);
            }
            at += take as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Copies changed bytes over what was read from below.
    fn lay_over(&self, offset_bytes: u64, buf: &mut [u8]) {
        let end = offset_bytes + buf.len() as u64;
        for (page, bytes) in self.pages.range(offset_bytes / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) {
            let start = page * PAGE_BYTES;
            let (from, to) = (offset_bytes.max(start), end.min(start + bytes.len() as u64));
            let source = bytes.get((from - start) as usize..(to.max(from) - start) as usize);
            let place = buf.get_mut((from - offset_bytes) as usize..(to.max(from) - offset_bytes) as usize);
            if let (Some(source), Some(place)) = (source, place) {
                place.copy_from_slice(source);
            }
        }
    }
}

impl BlockDevice for Overlay {
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
        true
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset_bytes, buf)?;
        self.lay_over(offset_bytes, buf);
        Ok(())
    }
    fn read_batch(&self, reads: &mut [ReadOp<'_>]) -> Result<()> {
        self.below.read_batch(reads)?;
        for read in reads {
            self.lay_over(read.offset_bytes, read.buf);
        }
        Ok(())
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        check_access(self, Op::Write, offset_bytes, buf.len() as u64)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowshed_device::MemDevice;

    #[test]
    fn changes_show_and_the_device_stays() {
        let below: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("below", 10_000));
        below.write_at(0, &[7; 10_000]).unwrap();
        let mut overlay = Overlay::new(Arc::clone(&below));
        overlay.put(4090, &[1; 10]).unwrap();
        overlay.put(9_990, &[2; 10]).unwrap();
        assert!(overlay.put(9_990, &[2; 11]).is_err());
        let mut bytes = vec![0; 10_000];
        overlay.read_at(0, &mut bytes).unwrap();
        let expected = [&[7; 4090][..], &[1; 10], &[7; 5890], &[2; 10]].concat();
        assert!(bytes == expected);
        let mut part = [0; 20];
        overlay
            .read_batch(&mut [ReadOp {
                offset_bytes: 4085,
                buf: &mut part,
            }])
            .unwrap();
        assert_eq!(part[..], expected[4085..4105]);
        assert!(overlay.write_at(0, &[0]).is_err());
        below.read_at(0, &mut bytes).unwrap();
        assert!(bytes == [7; 10_000]);
        assert_eq!(overlay.bytes(), 3 * 4096);
    }
}
