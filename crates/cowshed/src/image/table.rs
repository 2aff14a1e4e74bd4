//! Partitions of a disk that is there: a GUID partition table (UEFI specification) or a master boot
//! record. Nothing in them is trusted.

use std::ops::Range;

use cowshed_device::BlockDevice;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::error::{Error, Result};
use super::gpt::crc32;

/// Sizes of sectors in which tables count.
const SECTOR_BYTES: [u64; 2] = [512, 4096];
const MBR_SECTOR_BYTES: u64 = 512;
/// Bytes of all entries of a GPT.
const ENTRIES_BYTES_MAX: u64 = 1 << 20;
/// Logical partitions of a boot record.
const LOGICAL_MAX: u32 = 128;
const TYPE_GPT: u8 = 0xee;
const TYPES_EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

#[derive(FromBytes, Unaligned, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Header {
    signature: [u8; 8],
    revision: U32,
    header_bytes: U32,
    header_crc: U32,
    reserved: U32,
    own_sector: U64,
    other_sector: U64,
    usable_first: U64,
    usable_last: U64,
    disk: [u8; 16],
    entries_sector: U64,
    entries: U32,
    entry_bytes: U32,
    entries_crc: U32,
}
const _: () = assert!(size_of::<Header>() == 92);
/// Where the header's own checksum is.
const CRC_AT: Range<usize> = 16..20;

#[derive(FromBytes, Unaligned, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Entry {
    kind: [u8; 16],
    uuid: [u8; 16],
    first: U64,
    last: U64,
    flags: U64,
    name: [U16; 36],
}
const _: () = assert!(size_of::<Entry>() == 128);

#[derive(FromBytes, Unaligned, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct BootEntry {
    active: u8,
    start_chs: [u8; 3],
    kind: u8,
    end_chs: [u8; 3],
    first: U32,
    sectors: U32,
}

#[derive(FromBytes, Unaligned, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct BootRecord {
    code: [u8; 446],
    entries: [BootEntry; 4],
    signature: [u8; 2],
}
const _: () = assert!(size_of::<BootRecord>() as u64 == MBR_SECTOR_BYTES);
const BOOT_SIGNATURE: [u8; 2] = [0x55, 0xaa];

/// A partition.
#[derive(Debug)]
struct Partition {
    number: u32,
    /// Empty where the table has no names.
    name: String,
    bytes: Range<u64>,
}

/// The bytes of a partition, by its number or its name. Errors: no table, no such partition, one
/// that reaches beyond the disk.
pub fn find(disk: &dyn BlockDevice, wanted: &str) -> Result<Range<u64>> {
    let refuse = |what: String| Error::Option(format!("{}: {what}", disk.name()));
    let partitions = match gpt(disk)? {
        Some(partitions) => partitions,
        None => boot_record(disk)?.ok_or_else(|| refuse("has no partition table".into()))?,
    };
    let number: Option<u32> = wanted.parse().ok();
    let by_number = partitions.iter().find(|partition| Some(partition.number) == number);
    let mut by_name = partitions.iter().filter(|partition| partition.name == wanted);
    let found = match (by_number, by_name.next(), by_name.next()) {
        (Some(found), _, _) | (None, Some(found), None) => found,
        (None, Some(_), Some(_)) => return Err(refuse(format!("has several partitions '{wanted}'"))),
        (None, None, _) => return Err(refuse(format!("has no partition '{wanted}'"))),
    };
    if found.bytes.is_empty() || found.bytes.end > disk.size_bytes() {
        return Err(refuse(format!(
            "partition '{wanted}' is empty or reaches beyond the disk"
        )));
    }
    Ok(found.bytes.clone())
}

fn bytes(disk: &dyn BlockDevice, at: u64, len: u64) -> Result<Option<Vec<u8>>> {
    if at.checked_add(len).is_none_or(|end| end > disk.size_bytes()) {
        return Ok(None);
    }
    let mut buf = vec![0; usize::try_from(len).unwrap_or(0)];
    disk.read_at(at, &mut buf)?;
    Ok(Some(buf))
}

/// The partitions of a GPT, by its first header, or by the last one where that is broken.
fn gpt(disk: &dyn BlockDevice) -> Result<Option<Vec<Partition>>> {
    for sector in SECTOR_BYTES {
        let last = (disk.size_bytes() / sector).saturating_sub(1);
        for at in [1, last] {
            if let Some(partitions) = gpt_at(disk, at, sector)? {
                return Ok(Some(partitions));
            }
        }
    }
    Ok(None)
}

fn gpt_at(disk: &dyn BlockDevice, at: u64, sector: u64) -> Result<Option<Vec<Partition>>> {
    let Some(raw) = bytes(disk, at * sector, sector)? else {
        return Ok(None);
    };
    let Ok((header, _)) = Header::read_from_prefix(&raw) else {
        return Ok(None);
    };
    let len = header.header_bytes.get() as usize;
    let Some(mut covered) = raw.get(..len).map(<[u8]>::to_vec) else {
        return Ok(None);
    };
    if header.signature != *b"EFI PART" || header.own_sector.get() != at || len < size_of::<Header>() {
        return Ok(None);
    }
    covered[CRC_AT].fill(0);
    if crc32(&covered) != header.header_crc.get() {
        return Ok(None);
    }
    let entry_bytes = u64::from(header.entry_bytes.get());
    let entries_bytes = entry_bytes * u64::from(header.entries.get());
    if entry_bytes < size_of::<Entry>() as u64 || entries_bytes > ENTRIES_BYTES_MAX {
        return Ok(None);
    }
    let start = header.entries_sector.get().saturating_mul(sector);
    let Some(raw) = bytes(disk, start, entries_bytes)? else {
        return Ok(None);
    };
    if crc32(&raw) != header.entries_crc.get() {
        return Ok(None);
    }
    let mut partitions = Vec::new();
    for (raw, number) in raw.chunks(entry_bytes as usize).zip(1..) {
        let Ok((entry, _)) = Entry::read_from_prefix(raw) else {
            continue;
        };
        if entry.kind == [0; 16] {
            continue;
        }
        let end = entry.last.get().checked_add(1).and_then(|end| end.checked_mul(sector));
        let name = entry.name.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0);
        partitions.push(Partition {
            number,
            name: String::from_utf16_lossy(&name.collect::<Vec<_>>()),
            bytes: entry.first.get().saturating_mul(sector)..end.unwrap_or(u64::MAX),
        });
    }
    Ok(Some(partitions))
}

fn record_at(disk: &dyn BlockDevice, sector: u64) -> Result<Option<BootRecord>> {
    let raw = bytes(disk, sector * MBR_SECTOR_BYTES, MBR_SECTOR_BYTES)?;
    let record = raw.and_then(|raw| BootRecord::read_from_bytes(&raw).ok());
    Ok(record.filter(|record| record.signature == BOOT_SIGNATURE))
}

/// The partitions of a master boot record: 1 to 4, logical ones from 5.
fn boot_record(disk: &dyn BlockDevice) -> Result<Option<Vec<Partition>>> {
    let Some(record) = record_at(disk, 0)? else {
        return Ok(None);
    };
    let mut partitions = Vec::new();
    let mut add = |number: u32, base: u64, entry: &BootEntry| {
        let first = base + u64::from(entry.first.get());
        let end = first + u64::from(entry.sectors.get());
        partitions.push(Partition {
            number,
            name: String::new(),
            bytes: first * MBR_SECTOR_BYTES..end * MBR_SECTOR_BYTES,
        });
    };
    let mut extended = None;
    for (entry, number) in record.entries.iter().zip(1..) {
        match entry.kind {
            0 | TYPE_GPT => {}
            kind if TYPES_EXTENDED.contains(&kind) => extended = Some(u64::from(entry.first.get())),
            _ => add(number, 0, entry),
        }
    }
    // Each logical partition has a record of its own, which leads to the next one.
    let base = extended.unwrap_or_default();
    let mut next = extended;
    for number in 5..5 + LOGICAL_MAX {
        let Some(at) = next else { break };
        let Some(record) = record_at(disk, at)? else { break };
        let [own, link, ..] = record.entries;
        if own.kind != 0 {
            add(number, at, &own);
        }
        next = TYPES_EXTENDED
            .contains(&link.kind)
            .then(|| base + u64::from(link.first.get()));
    }
    Ok(Some(partitions))
}
