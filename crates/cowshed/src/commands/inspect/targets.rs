//! What all views of a volume are told on the command line.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

/// The devices of the volume to look at.
#[derive(Args, Debug)]
pub(in crate::commands::inspect) struct Targets {
    /// Image files or block devices of one volume
    #[arg(required = true, value_name = "TARGET")]
    pub(in crate::commands::inspect) targets: Vec<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub(in crate::commands::inspect) json: bool,
}

/// A logical address: decimal, or hexadecimal with 0x.
pub(in crate::commands::inspect) fn address(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let Ok(addr) = parsed else {
        bail!("{text:?} is no address")
    };
    Ok(addr)
}
