//! What a device holds already: the signatures of file systems, partition tables and volume
//! managers.

use std::fmt;

use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use cowshed_device::BlockDevice;

/// Something that was found on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// What it is, for people.
    pub name: &'static str,
    /// Where it lies on the device.
    pub offset_bytes: u64,
    /// Bytes of the magic number.
    pub len_bytes: usize,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (signature at byte {})", self.name, self.offset_bytes)
    }
}

/// Where a magic number lies.
#[derive(Clone, Copy)]
enum Place {
    Start(u64),
    /// Counted back from the end of the device.
    End(u64),
}
use Place::{End, Start};

/// The magic numbers, those of real contents before those that are only part of something.
const MAGICS: &[(&str, Place, &[u8])] = &[
    ("a btrfs volume", Start(SUPERBLOCK_OFFSETS[0] + 64), b"_BHRfS_M"),
    ("an ext2, ext3 or ext4 file system", Start(1024 + 56), b"\x53\xef"),
    ("an XFS file system", Start(0), b"XFSB"),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an exFAT file system", Start(3), b"EXFAT   "),
    ("a FAT file system", Start(54), b"FAT12   "),
    ("a FAT file system", Start(54), b"FAT16   "),
    ("a FAT file system", Start(82), b"FAT32   "),
    ("a BitLocker volume", Start(3), b"-FVE-FS-"),
    ("an F2FS file system", Start(1024), b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", Start(1024), b"\xe2\xe1\xf5\xe0"),
    ("a SquashFS file system", Start(0), b"hsqs"),
    ("an ISO 9660 file system", Start(32769), b"CD001"),
    ("a UDF file system", Start(32769), b"BEA01"),
    ("a ReiserFS file system", Start(65536 + 52), b"ReIsEr"),
    ("a Reiser4 file system", Start(65536), b"ReIsEr4"),
    ("a JFS file system", Start(32768), b"JFS1"),
    ("a NILFS2 file system", Start(1024 + 6), b"\x34\x34"),
    ("an HFS+ file system", Start(1024), b"H+"),
    ("an HFS+ file system", Start(1024), b"HX"),
    ("an APFS container", Start(32), b"NXSB"),
    ("a GFS2 file system", Start(65536), b"\x01\x16\x19\x70"),
    ("an OCFS2 file system", Start(8192), b"OCFSV2"),
    (
        "a bcachefs or bcache device",
        Start(4096 + 24),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    (
        "a bcachefs device",
        Start(4096 + 24),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    (
        "a ZFS pool member",
        Start((128 << 10) + 1024 * 4),
        b"\x0c\xb1\xba\x00\x00\x00\x00\x00",
    ),
    (
        "a ZFS pool member",
        Start(128 << 10),
        b"\x0c\xb1\xba\x00\x00\x00\x00\x00",
    ),
    ("a swap area", Start(4096 - 10), b"SWAPSPACE2"),
    ("a swap area", Start(4096 - 10), b"SWAP-SPACE"),
    ("a swap area", Start(16384 - 10), b"SWAPSPACE2"),
    ("a swap area", Start(65536 - 10), b"SWAPSPACE2"),
    ("a LUKS volume", Start(0), b"LUKS\xba\xbe"),
    ("an LVM physical volume", Start(0), b"LABELONE"),
    ("an LVM physical volume", Start(512), b"LABELONE"),
    ("an LVM physical volume", Start(1024), b"LABELONE"),
    ("an LVM physical volume", Start(1536), b"LABELONE"),
    ("a Linux RAID member", Start(0), b"\xfc\x4e\x2b\xa9"),
    ("a Linux RAID member", Start(4096), b"\xfc\x4e\x2b\xa9"),
    ("a GPT partition table", Start(512), b"EFI PART"),
    ("a GPT partition table", Start(4096), b"EFI PART"),
    ("the backup of a GPT partition table", End(512), b"EFI PART"),
    ("the backup of a GPT partition table", End(4096), b"EFI PART"),
    ("a DOS partition table or boot sector", Start(510), b"\x55\xaa"),
    (
        "a copy of a btrfs superblock",
        Start(SUPERBLOCK_OFFSETS[1] + 64),
        b"_BHRfS_M",
    ),
    (
        "a copy of a btrfs superblock",
        Start(SUPERBLOCK_OFFSETS[2] + 64),
        b"_BHRfS_M",
    ),
];

/// Finds all that is known, the most telling first. Errors: those of reading the device.
pub fn probe(device: &dyn BlockDevice) -> Result<Vec<Signature>, cowshed_device::Error> {
    let size = device.size_bytes();
    let mut found = Vec::new();
    let mut put = |name, offset_bytes, len_bytes| {
        let signature = Signature {
            name,
            offset_bytes,
            len_bytes,
        };
        if !found.contains(&signature) {
            found.push(signature);
        }
    };
    for &(name, place, magic) in MAGICS {
        let offset = match place {
            Start(offset) => Some(offset),
            End(back) => size.checked_sub(back),
        };
        let Some(offset) = offset.filter(|offset| offset.saturating_add(magic.len() as u64) <= size) else {
            continue;
        };
        if holds(device, offset, magic)? {
            put(name, offset, magic.len());
        }
    }
    for offset in raid_superblocks_at_end(size) {
        if holds(device, offset, b"\xfc\x4e\x2b\xa9")? {
            put("a Linux RAID member", offset, 4);
        }
    }
    Ok(found)
}

fn holds(device: &dyn BlockDevice, offset_bytes: u64, magic: &[u8]) -> Result<bool, cowshed_device::Error> {
    let mut bytes = vec![0; magic.len()];
    device.read_at(offset_bytes, &mut bytes)?;
    Ok(bytes == magic)
}

/// Where version 0.90 and 1.0 of the metadata of Linux RAID lie: in the last 64 KiB and 8 KiB that
/// are aligned so.
fn raid_superblocks_at_end(size_bytes: u64) -> impl Iterator<Item = u64> {
    let v0 = (size_bytes & !0xffff).checked_sub(0x10000);
    let v1 = size_bytes.checked_sub(0x2000).map(|offset| offset & !0xfff);
    let inside = move |offset: &u64| offset.saturating_add(4) <= size_bytes;
    v0.into_iter().chain(v1).filter(inside)
}

#[cfg(test)]
mod tests {
    use cowshed_device::MemDevice;

    use super::*;

    #[test]
    fn zeroed_device_of_any_size_has_no_signature() {
        for size in [0, 1, 511, 512, 4096, 1 << 20, 200 << 20] {
            assert!(probe(&MemDevice::new("d", size)).unwrap().is_empty(), "{size}");
        }
    }

    #[test]
    fn every_known_signature_is_found() {
        let size = (256 << 30) + (1 << 20);
        for &(name, place, magic) in MAGICS {
            let device = MemDevice::new("d", size);
            let offset = match place {
                Start(offset) => offset,
                End(back) => size - back,
            };
            device.write_at(offset, magic).unwrap();
            let found = probe(&device).unwrap();
            assert!(
                found.iter().any(|f| f.name == name && f.offset_bytes == offset),
                "{name}"
            );
        }
        for offset in raid_superblocks_at_end(size) {
            let device = MemDevice::new("d", size);
            device.write_at(offset, b"\xfc\x4e\x2b\xa9").unwrap();
            assert_eq!(probe(&device).unwrap()[0].name, "a Linux RAID member");
        }
    }
}
