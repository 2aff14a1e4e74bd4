//! `cowshed cat`: prints files of a volume that is not mounted.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::devices::{self, ReadArgs};

#[derive(Args, Debug)]
pub struct CatArgs {
    /// Image file or block device
    target: PathBuf,
    /// Files in the volume
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

const STEP_BYTES: usize = 1 << 20;

/// What can be printed is printed; the exit code tells that something could not.
pub fn run(args: &CatArgs) -> Result<u8> {
    let volume = devices::open_files(&args.target, &args.read)?;
    let mut out = std::io::stdout().lock();
    let mut buf = vec![0; STEP_BYTES];
    let mut code = 0;
    for path in &args.paths {
        let mut print = || -> Result<()> {
            let file = volume.open(path)?;
            let mut at = 0;
            loop {
                let got = file.read_at(at, &mut buf)?;
                if got == 0 {
                    return Ok(());
                }
                out.write_all(&buf[..got])?;
                at += got as u64;
            }
        };
        match print() {
            Ok(()) => {}
            Err(error) if error.is::<cowshed::Error>() => {
                eprintln!("cowshed: {error}");
                code = 2;
            }
            Err(error) => return Err(error),
        }
    }
    out.flush()?;
    Ok(code)
}
