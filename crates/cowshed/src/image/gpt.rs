//! A GUID partition table with one partition (UEFI specification, "GUID Partition Table").

use cowshed_device::BlockDevice;
use flate2::Crc;
use uuid::Uuid;

use super::error::Error;

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
/// Types of partitions that have a name: the UAPI group's discoverable partitions specification.
const TYPES: [(&str, u128); 14] = [
    ("linux-generic", 0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4),
    ("root-x86-64", 0x4f68_bce3_e8cd_4db1_96e7_fbca_f984_b709),
    ("root-x86", 0x4447_9540_f297_41b2_9af7_d131_d5f0_458a),
    ("root-arm64", 0xb921_b045_1df0_41c3_af44_4c6f_280d_3fae),
    ("root-arm", 0x69da_d710_2ce4_4e3c_b16c_21a1_d49a_bed3),
    ("root-riscv64", 0x72ec_70a6_cf74_40e6_bd49_4bda_08e8_f224),
    ("usr-x86-64", 0x8484_680c_9521_48c6_9c11_b072_0656_f69e),
    ("usr-arm64", 0xb0e0_1050_ee5f_4390_949a_9101_b171_04e9),
    ("usr-riscv64", 0xbeae_c34b_8442_439b_a40b_9843_81ed_097d),
    ("home", 0x933a_c7e1_2eb4_4f13_b844_0e14_e2ae_f915),
    ("srv", 0x3b8f_8425_20e0_4f3b_907f_1a25_a76f_98e8),
    ("var", 0x4d21_b016_b534_45c2_a9fb_5c16_e091_fd2d),
    ("tmp", 0x7ec6_f557_3bc5_4aca_b293_16ef_5df6_39d1),
    ("xbootldr", 0xbc13_c2ff_59e6_4262_a352_b275_fd6f_7172),
];
/// Characters of a partition's name.
const NAME_CHARS_MAX: usize = 36;

/// What a partition is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionType(Uuid);

impl Default for PartitionType {
    /// Files of Linux.
    fn default() -> Self {
        Self(Uuid::from_u128(TYPES[0].1))
    }
}

impl std::str::FromStr for PartitionType {
    type Err = Error;

    /// A name (`linux-generic`, `root-x86-64`, ...; `root` and `usr`: those of this machine) or a
    /// uuid.
    fn from_str(text: &str) -> Result<Self, Error> {
        let machine = match std::env::consts::ARCH {
            "x86_64" => "x86-64",
            "aarch64" => "arm64",
            other => other,
        };
        let name = match text {
            "root" | "usr" => format!("{text}-{machine}"),
            other => other.to_owned(),
        };
        let named = TYPES.iter().find(|(known, _)| *known == name);
        let uuid = named.map(|(_, number)| Uuid::from_u128(*number));
        uuid.or_else(|| text.parse().ok()).map(Self).ok_or_else(|| {
            let known: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
            Error::Option(format!(
                "'{text}' is no type of partition: a uuid, root, usr, {}",
                known.join(", ")
            ))
        })
    }
}

/// What the table says.
pub(super) struct Table<'t> {
    pub(super) disk: Uuid,
    pub(super) partition: Uuid,
    pub(super) kind: PartitionType,
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
    pub(super) fn write(&self, device: &dyn BlockDevice) -> cowshed_device::Result<()> {
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
        entry.extend(self.kind.0.to_bytes_le());
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

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
