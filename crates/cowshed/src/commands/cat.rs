//! `cowshed cat`: prints files of a volume that is not mounted.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::files::Base;
use super::named::{Named, named};
use crate::devices::ReadArgs;

#[derive(Args, Debug)]
pub struct CatArgs {
    /// IMAGE:/PATH, or an image file or block device
    target: PathBuf,
    /// More of them, or files in the volume
    paths: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

const STEP_BYTES: usize = 1 << 20;

/// What can be printed is printed; the exit code tells that something could not.
pub fn run(args: &CatArgs, base: &Base) -> Result<u8> {
    let mut code = 0;
    for named in named(base, &args.target, &args.paths, &[])? {
        if named.paths.is_empty() {
            bail!("no file is named: IMAGE:/PATH, or paths behind the image");
        }
        code = code.max(one(args, &named)?);
    }
    Ok(code)
}

fn one(args: &CatArgs, named: &Named) -> Result<u8> {
    let volume = named.open(&args.read)?;
    let mut out = std::io::stdout().lock();
    let mut buf = vec![0; STEP_BYTES];
    let mut code = 0;
    for path in &named.paths {
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
        if let Err(error) = print() {
            let error = error.downcast::<cowshed::Error>()?;
            named.complain("cat", "", path, &error);
            code = named.failure_code();
        }
    }
    out.flush()?;
    Ok(code)
}
