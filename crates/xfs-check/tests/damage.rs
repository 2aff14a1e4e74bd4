//! Random damage: the checker ends, does not panic, and finds something wherever `xfs_repair -n`
//! does.
//!
//! Each round damages a copy of a sound volume from a seed that is printed when the round fails. In
//! half of the rounds the checksums of damaged blocks are set right again. `COWSHED_SEED=n` runs
//! one seed, `COWSHED_ROUNDS=n` more or fewer of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::xfs::{Fill, XfsOptions, XfsVolume, fill};
use cowshed_harness::{need, run_raw};
use xfs_check::{CheckOptions, check};
use xfs_format::{Geometry, Superblock, crc};

const ROUND_TIME_MAX: Duration = Duration::from_secs(20);

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

/// Metadata, and where its checksum lies.
#[derive(Clone, Copy)]
struct Piece {
    at: u64,
    len: usize,
    crc: usize,
}

/// Kinds of blocks: magic, where it stands, and where the checksum is.
const MAGICS: &[(&[u8], usize, usize)] = &[
    (b"AB3B", 0, 52),
    (b"AB3C", 0, 52),
    (b"IAB3", 0, 52),
    (b"FIB3", 0, 52),
    (b"RMB3", 0, 52),
    (b"R3FC", 0, 52),
    (b"BMA3", 0, 64),
    (b"XDB3", 0, 4),
    (b"XDD3", 0, 4),
    (b"XDF3", 0, 4),
    (b"XARM", 0, 12),
    (b"XSLM", 0, 12),
    (&[0x3d, 0xf1], 8, 12),
    (&[0x3d, 0xff], 8, 12),
    (&[0x3e, 0xbe], 8, 12),
    (&[0x3b, 0xee], 8, 12),
];
const SECTORS: &[(&[u8], usize)] = &[(b"XFSB", 224), (b"XAGF", 216), (b"XAGI", 312), (b"XAFL", 32)];

fn pieces(device: &MemDevice) -> Result<Vec<Vec<Piece>>> {
    let mut head = vec![0; 4096];
    device.read_at(0, &mut head)?;
    let sb = Superblock::verify(&head)?;
    let geometry = Geometry::new(&sb)?;
    let (block, sector, inode) = (
        geometry.block_bytes as usize,
        geometry.sector_bytes as usize,
        geometry.inode_bytes as usize,
    );
    let log = geometry
        .log_start
        .and_then(|start| geometry.daddr(start))
        .map_or(0, |daddr| daddr.get() * 512);
    let log = log..log + u64::from(geometry.log_blocks) * block as u64;
    // One list for each kind, so that rare ones are hit, too.
    let mut found: Vec<Vec<Piece>> = vec![Vec::new(); MAGICS.len() + SECTORS.len() + 1];
    let mut bytes = vec![0; block];
    for at in (0..geometry.blocks * block as u64).step_by(block) {
        if log.contains(&at) {
            continue;
        }
        device.read_at(at, &mut bytes)?;
        if at % (u64::from(geometry.ag_blocks) * block as u64) == 0 {
            for (n, sector_bytes) in bytes.chunks(sector).enumerate() {
                if let Some(kind) = SECTORS.iter().position(|(magic, _)| sector_bytes.starts_with(magic)) {
                    let at = at + (n * sector) as u64;
                    found[kind].push(Piece {
                        at,
                        len: sector,
                        crc: SECTORS[kind].1,
                    });
                }
            }
        } else if let Some(kind) = MAGICS
            .iter()
            .position(|(magic, place, _)| bytes[*place..].starts_with(magic))
        {
            found[SECTORS.len() + kind].push(Piece {
                at,
                len: block,
                crc: MAGICS[kind].2,
            });
        } else if bytes.starts_with(b"IN") && bytes[4] == 3 {
            for n in 0..block / inode {
                let at = at + (n * inode) as u64;
                found[SECTORS.len() + MAGICS.len()].push(Piece {
                    at,
                    len: inode,
                    crc: 100,
                });
            }
        }
    }
    found.retain(|pieces| !pieces.is_empty());
    Ok(found)
}

fn damage(device: &MemDevice, kinds: &[Vec<Piece>], dice: &mut Dice) -> Result<String> {
    let mut said = String::new();
    let reseal = dice.below(2) == 0;
    for _ in 0..1 + dice.below(3) {
        let kind = &kinds[dice.below(kinds.len() as u64) as usize];
        let piece = kind[dice.below(kind.len() as u64) as usize];
        let mut bytes = vec![0; piece.len];
        device.read_at(piece.at, &mut bytes)?;
        for _ in 0..1 + dice.below(4) {
            // Headers are hit more often than what follows.
            let limit = if dice.below(2) == 0 {
                256.min(piece.len)
            } else {
                piece.len
            };
            let at = dice.below(limit as u64) as usize;
            let value = dice.roll() as u8;
            said += &format!("{:#x}+{at}: {:#x} to {value:#x}\n", piece.at, bytes[at]);
            bytes[at] = value;
        }
        if reseal {
            crc::store(&mut bytes, piece.crc);
        }
        device.write_at(piece.at, &bytes)?;
    }
    Ok(said + if reseal { "resealed" } else { "" })
}

#[test]
fn what_the_stock_checker_finds_is_found() -> Result<()> {
    let Some(()) = need::kernel_xfs().and(need::tool("xfs_repair")) else {
        return Ok(());
    };
    let volume = XfsVolume::make(&XfsOptions::new("-m rmapbt=1,reflink=1"))?;
    let what = Fill {
        entries: 30,
        names: 1200,
        extents: 300,
        links: 30,
        ..Fill::small(5)
    };
    volume.with_mount(|root| fill(root, &what))?;
    let image = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
    let base = MemDevice::copy_of("volume", &image)?;
    let kinds = pieces(&base)?;
    assert!(kinds.len() >= 14, "{} kinds of blocks", kinds.len());
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("COWSHED_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("COWSHED_ROUNDS").unwrap_or(30),
    };
    let path = volume.dir().join("damaged.img");
    let (mut both, mut alone, mut sound, mut missed) = (0, 0, 0, Vec::new());
    for seed in seeds {
        let device = base.snapshot();
        let said = damage(&device, &kinds, &mut Dice(seed))?;
        device.save(&path)?;
        let start = Instant::now();
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let check = || check(device.clone(), &CheckOptions::default());
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        let report = report.unwrap_or_else(|_| panic!("panic with COWSHED_SEED={seed}"));
        let took = start.elapsed();
        assert!(took < ROUND_TIME_MAX, "COWSHED_SEED={seed} took {took:?}");
        let judged = run_raw("xfs_repair", &["-n".as_ref(), "-f".as_ref(), path.as_os_str()])?;
        match (judged.status.success(), report.is_clean()) {
            (false, false) => both += 1,
            (true, false) => alone += 1,
            (true, true) => sound += 1,
            (false, true) => {
                let text =
                    String::from_utf8_lossy(&judged.stderr).into_owned() + &String::from_utf8_lossy(&judged.stdout);
                let lines = text
                    .lines()
                    .filter(|line| !line.starts_with("Phase") && !line.starts_with("        - "));
                missed.push(format!(
                    "COWSHED_SEED={seed}\n{said}\n{}\n",
                    lines.collect::<Vec<_>>().join("\n")
                ));
            }
        }
    }
    println!(
        "{both} found by both, {alone} by us alone, {sound} by nobody, {} missed",
        missed.len()
    );
    assert!(
        missed.is_empty(),
        "xfs_repair -n finds faults that we miss:\n{}",
        missed.join("\n")
    );
    Ok(())
}
