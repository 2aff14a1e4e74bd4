//! The long runs of XFS.

use anyhow::{Result, bail};

use crate::long;

/// `cargo xtask xfs logs --count N --seed S`
pub fn main(args: &long::Args) -> Result<()> {
    match args.split_first() {
        Some(("logs", rest)) => long::build_and_run(&["cowshed-xfslogs"], rest),
        _ => bail!("cargo xtask xfs logs [--count N] [--seed S] [--flips N] [--focus LOAD]"),
    }
}
