//! Volumes that Linux made and filled with every form of the format: nothing is wrong.
//!
//! `COWSHED_ALL=1` checks all kinds, not three alone.

use std::sync::Arc;

use anyhow::Result;
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};
use cowshed_harness::need;
use cowshed_harness::xfs::{Fill, XfsOptions, XfsVolume, fill};
use xfs_check::{CheckOptions, Report, check};

/// Arguments of mkfs.xfs; the first ones are for every run.
const KINDS: &[&str] = &[
    "",
    "-b size=1024 -n size=8192 -m rmapbt=1",
    "-b size=65536 -i size=1024 -m rmapbt=1,reflink=1",
    "-i size=2048 -n size=65536",
    "-m reflink=0,bigtime=0,inobtcount=0 -i nrext64=0",
    "-m finobt=0,inobtcount=0 -i sparse=0",
    "-m crc=0",
    "-d agcount=3 -m rmapbt=1 -l size=64m",
    "-b size=2048 -m rmapbt=1",
];

fn open(volume: &XfsVolume) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(FileDevice::open_with(
        volume.image(),
        OpenMode::ReadOnly,
        Locking::Unlocked,
    )?))
}

fn judge(volume: &XfsVolume) -> Result<Report> {
    let options = CheckOptions {
        threads: 2,
        ..CheckOptions::default()
    };
    Ok(check(open(volume)?, &options))
}

#[test]
fn volumes_of_the_kernel_have_no_faults() -> Result<()> {
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let all = std::env::var_os("COWSHED_ALL").is_some();
    let kinds = if all { KINDS } else { &KINDS[..3] };
    for (seed, mkfs) in (1..).zip(kinds) {
        let options = XfsOptions {
            size_bytes: 1 << 30,
            ..XfsOptions::new(*mkfs)
        };
        let volume = XfsVolume::make(&options)?;
        let word = |name: &str| {
            mkfs.split([' ', '='])
                .skip_while(|word| *word != name)
                .nth(1)
                .map(str::to_owned)
        };
        let is_old = mkfs.contains("crc=0");
        let what = Fill {
            entries: if all { 100 } else { 40 },
            names: if all { 3000 } else { 1200 },
            extents: if all { 2000 } else { 600 },
            block_bytes: word("size").and_then(|word| word.parse().ok()).unwrap_or(4096),
            reflink: !mkfs.contains("reflink=0") && !is_old,
            ..Fill::small(seed)
        };
        if !is_old {
            volume.with_mount(|root| fill(root, &what))?;
        }
        let report = judge(&volume)?;
        assert!(report.findings.is_empty(), "mkfs.xfs {mkfs}:\n{report}");
        let stats = report.statistics;
        assert!(
            stats.was_checked && stats.inodes >= if is_old { 3 } else { 500 },
            "{stats:?}"
        );
    }
    Ok(())
}
