//! A GUID partition table with one partition (UEFI specification, "GUID Partition Table").

use cowshed_device::{BlockDevice, Result};
use flate2::Crc;
use uuid::Uuid;

/// Bytes before the partition: partitions begin at a mebibyte.
pub(super) const HEAD_BYTES: u64 = 1 << 20;
/// Bytes behind it, for the table's copy; so that the disk ends at a mebibyte.
pub(super) const TAIL_BYTES: u64 = 1 << 20;
const SECTOR_BYTES: u64 = 512;
const ENTRIES: u32 = 128;
const ENTRY_BYTES: u32 = 128;
/// Sectors of the entries.
const ENTRY_SECTORS: u64 = (ENTRIES * ENTRY_BYTES) as u64 / SECTOR_BYTES;
const HEADER_BYTES: u32 = 92;
const REVISION: u32 = 0x0001_0000;
/// The type of a partition for files of Linux.
const LINUX_FILES: Uuid = Uuid::from_u128(0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4);
/// Characters of a partition's name.
const NAME_CHARS_MAX: usize = 36;

/// What the table says.
pub(super) struct Table<'t> {
    pub(super) disk: Uuid,
    pub(super) partition: Uuid,
    pub(super) name: &'t str,
    /// Bytes of the partition, in whole sectors.
    pub(super) partition_bytes: u64,
}

impl Table<'_> {
    /// Bytes of the disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        HEAD_BYTES + self.partition_bytes + TAIL_BYTES
    }

    /// Writes the protective boot record, the table and its copy.
    pub(super) fn write(&self, device: &dyn BlockDevice) -> Result<()> {
        let last = self.disk_bytes() / SECTOR_BYTES - 1;
        let entries = self.entries();
        device.write_at(0, &boot_record(last))?;
        device.write_at(SECTOR_BYTES, &self.header(1, last, 2, &entries))?;
        device.write_at(2 * SECTOR_BYTES, &entries)?;
        let copy = last - ENTRY_SECTORS;
        device.write_at(copy * SECTOR_BYTES, &entries)?;
        device.write_at(last * SECTOR_BYTES, &self.header(last, 1, copy, &entries))
    }

    fn entries(&self) -> Vec<u8> {
        let first = HEAD_BYTES / SECTOR_BYTES;
        let last = first + self.partition_bytes / SECTOR_BYTES - 1;
        let mut entry = Vec::new();
        entry.extend(LINUX_FILES.to_bytes_le());
        entry.extend(self.partition.to_bytes_le());
        entry.extend(first.to_le_bytes());
        entry.extend(last.to_le_bytes());
        entry.extend(0_u64.to_le_bytes());
        let name = self.name.encode_utf16().take(NAME_CHARS_MAX);
        entry.extend(name.flat_map(u16::to_le_bytes));
        entry.resize((ENTRIES * ENTRY_BYTES) as usize, 0);
        entry
    }

    fn header(&self, own: u64, other: u64, entries_at: u64, entries: &[u8]) -> Vec<u8> {
        let last = self.disk_bytes() / SECTOR_BYTES - 1;
        let mut header = b"EFI PART".to_vec();
        header.extend(REVISION.to_le_bytes());
        header.extend(HEADER_BYTES.to_le_bytes());
        let sum_at = header.len();
        header.extend([0; 8]);
        for sector in [own, other, 2 + ENTRY_SECTORS, last - ENTRY_SECTORS - 1] {
            header.extend(sector.to_le_bytes());
        }
        header.extend(self.disk.to_bytes_le());
        header.extend(entries_at.to_le_bytes());
        header.extend(ENTRIES.to_le_bytes());
        header.extend(ENTRY_BYTES.to_le_bytes());
        header.extend(crc32(entries).to_le_bytes());
        let sum = crc32(&header);
        header[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
        header.resize(SECTOR_BYTES as usize, 0);
        header
    }
}

/// Says to old programs that the disk is in use.
fn boot_record(last: u64) -> Vec<u8> {
    const PARTITION_AT: usize = 446;
    let mut record = vec![0; PARTITION_AT];
    let sectors = u32::try_from(last).unwrap_or(u32::MAX);
    // Not active; from the second sector; of the type that means a GPT; to the end.
    record.extend([0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
    record.extend(1_u32.to_le_bytes());
    record.extend(sectors.to_le_bytes());
    record.resize(SECTOR_BYTES as usize - 2, 0);
    record.extend([0x55, 0xaa]);
    record
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
