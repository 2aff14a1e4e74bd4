//! `inspect agf`, `agi`, `agfl`: the headers of allocation groups.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use xfs_format::ag::{AgfSector, AgflSector, AgiSector};
use xfs_format::render::{Report, agf_report, agfl_report, agi_report};
use xfs_format::{AgNumber, Corrupt, Expect};

use super::printer::Printer;
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct GroupArgs {
    /// Image file or block device
    pub target: PathBuf,
    /// This group only
    #[arg(short, long, value_name = "NUMBER")]
    group: Option<u32>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

type Verify = fn(Vec<u8>, &Expect<'_>) -> Result<Report, Corrupt>;

pub fn run_agf(args: &GroupArgs) -> Result<u8> {
    run(args, "agf", 1, |bytes, expect| {
        AgfSector::verify(bytes, expect).map(|sector| agf_report(&sector))
    })
}

pub fn run_agi(args: &GroupArgs) -> Result<u8> {
    run(args, "agi", 2, |bytes, expect| {
        AgiSector::verify(bytes, expect).map(|sector| agi_report(&sector))
    })
}

pub fn run_agfl(args: &GroupArgs) -> Result<u8> {
    run(args, "agfl", 3, |bytes, expect| {
        AgflSector::verify(bytes, expect).map(|sector| agfl_report(&sector))
    })
}

fn run(args: &GroupArgs, name: &str, sector: u32, verify: Verify) -> Result<u8> {
    let reader = Reader::open(&args.target)?;
    let mut printer = Printer::new(args.json)?;
    for group in reader.groups(args.group)? {
        let read = || -> Result<Report> {
            let (bytes, expect) = reader.header(AgNumber(group), sector)?;
            Ok(verify(bytes, &expect)?)
        };
        match read().with_context(|| format!("group {group}")) {
            Ok(report) => printer.show(name, &[("group", group.into())], &report)?,
            Err(error) => printer.bad(&error),
        }
    }
    printer.finish()
}
