//! Checks an image and prints what was found: `check IMAGE [THREADS]`.

use std::sync::Arc;

use cowshed_device::{FileDevice, Locking, OpenMode};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_default();
    let threads = args.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked)?;
    let options = xfs_check::CheckOptions {
        threads,
        ..xfs_check::CheckOptions::default()
    };
    let report = xfs_check::check(Arc::new(device), &options);
    print!("{report}");
    println!("{:?}", report.statistics);
    std::process::exit(i32::from(!report.is_clean()));
}
