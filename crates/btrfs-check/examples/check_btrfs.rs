//! Checks a volume: `cargo run -p btrfs-check --example check_btrfs -- [--data] DEVICE...`

use std::process::ExitCode;
use std::sync::Arc;

use btrfs_check::{CheckOptions, check};
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};

fn main() -> ExitCode {
    let mut options = CheckOptions {
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        ..CheckOptions::default()
    };
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for arg in std::env::args().skip(1) {
        if arg == "--data" {
            options.data_csums = true;
            continue;
        }
        match FileDevice::open_with(&arg, OpenMode::ReadOnly, Locking::Unlocked) {
            Ok(device) => devices.push(Arc::new(device)),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        }
    }
    let report = check(&devices, &options);
    print!("{report}");
    println!("{:#?}", report.statistics);
    if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
