//! Random damage: the checker ends, does not panic, and says something.
//!
//! Each round damages a copy of a sound volume from a seed that is printed when the round fails.
//! Half of the rounds set the checksums of damaged blocks right again, so that the damage gets
//! behind the first line of defence. `COWSHED_SEED=n` runs one seed, `COWSHED_ROUNDS=n` more or
//! fewer of them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use btrfs_check::{CheckOptions, Report, check};
use btrfs_format::{ChecksumType, Superblock};
use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need};
use zerocopy::FromBytes;

const ROUND_TIME_MAX: Duration = Duration::from_secs(20);
const NODE_BYTES: u64 = 4096;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }
}

fn check_device(device: MemDevice) -> Report {
    let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(device)];
    let options = CheckOptions {
        data_csums: true,
        ..CheckOptions::default()
    };
    check(&devices, &options)
}

/// Where tree blocks lie on the device: whatever carries the volume's id at the place of a
/// header's.
fn tree_blocks(device: &MemDevice) -> Result<Vec<u64>> {
    let mut head = vec![0; 4096];
    device.read_at(65536, &mut head)?;
    let sb = Superblock::read_from_bytes(&head).ok().context("a superblock")?;
    let mut found = Vec::new();
    let mut buf = vec![0; 1 << 20];
    for at in (0..device.size_bytes()).step_by(buf.len()) {
        device.read_at(at, &mut buf)?;
        for (slot, block) in buf.chunks(NODE_BYTES as usize).enumerate() {
            if block[32..48] == sb.fsid && block[64..72] != *b"_BHRfS_M" {
                found.push(at + slot as u64 * NODE_BYTES);
            }
        }
    }
    Ok(found)
}

fn damage(device: &MemDevice, blocks: &[u64], dice: &mut Dice) -> Result<()> {
    let reseal = dice.below(2) == 0;
    for _ in 0..1 + dice.below(20) {
        let superblock = dice.below(20) == 0;
        let at = if superblock {
            65536
        } else {
            blocks[dice.below(blocks.len() as u64) as usize]
        };
        let mut bytes = vec![0; NODE_BYTES as usize];
        device.read_at(at, &mut bytes)?;
        match dice.below(8) {
            0 => {
                // A whole block from elsewhere.
                let other = blocks[dice.below(blocks.len() as u64) as usize];
                device.read_at(other, &mut bytes)?;
            }
            1 => {
                let start = dice.below(NODE_BYTES) as usize;
                let end = (start + dice.below(512) as usize).min(bytes.len());
                bytes[start..end].fill(dice.roll() as u8);
            }
            _ => {
                for _ in 0..1 + dice.below(8) {
                    // Headers and item headers are hit more often than data.
                    let limit = if dice.below(2) == 0 { 400 } else { NODE_BYTES };
                    bytes[dice.below(limit) as usize] = dice.roll() as u8;
                }
            }
        }
        if reseal || superblock {
            let sum = ChecksumType::Crc32c.compute(&bytes[32..]);
            bytes[..32].copy_from_slice(&sum);
        }
        device.write_at(at, &bytes)?;
    }
    Ok(())
}

#[test]
fn damaged_volumes_end_in_a_report() -> Result<()> {
    damage_volume(VolumeOptions::default())
}

#[test]
fn damaged_volumes_of_the_old_kind_end_in_a_report() -> Result<()> {
    damage_volume(VolumeOptions {
        features: vec!["^no-holes", "^skinny-metadata"],
        runtime_features: vec!["^free-space-tree", "quota"],
        ..VolumeOptions::default()
    })
}

fn damage_volume(options: VolumeOptions) -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let options = VolumeOptions {
        size_bytes: 256 << 20,
        node_bytes: Some(NODE_BYTES as u32),
        data: Some("single"),
        metadata: Some("single"),
        ..options
    };
    let volume = KernelVolume::make_populated(&options, 3, 60)?;
    let image: &Path = volume.image();
    let base = MemDevice::copy_of(
        "volume",
        &FileDevice::open_with(image, OpenMode::ReadOnly, Locking::Unlocked)?,
    )?;
    let blocks = tree_blocks(&base)?;
    assert!(blocks.len() > 100, "{} blocks", blocks.len());
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("COWSHED_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("COWSHED_ROUNDS").unwrap_or(150),
    };
    let mut found = 0;
    let rounds = seeds.end - seeds.start;
    for seed in seeds {
        let device = base.snapshot();
        damage(&device, &blocks, &mut Dice(seed))?;
        let start = Instant::now();
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_device(device)));
        let report = report.unwrap_or_else(|_| panic!("panic with COWSHED_SEED={seed}"));
        assert!(
            start.elapsed() < ROUND_TIME_MAX,
            "COWSHED_SEED={seed} took {:?}",
            start.elapsed()
        );
        found += u64::from(!report.is_clean());
    }
    // Blocks that are no longer in use may be damaged without harm.
    assert!(found * 2 > rounds, "only {found} of {rounds} rounds found anything");
    Ok(())
}
