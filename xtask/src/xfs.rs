//! The long runs of XFS.

use anyhow::{Result, bail};

use crate::long;

/// `cargo xtask xfs logs --count N --seed S`, `cargo xtask xfs matrix`
pub fn main(args: &long::Args) -> Result<()> {
    match args.split_first() {
        Some(("matrix", rest)) => {
            let args = [&["xfs".to_owned(), "matrix".to_owned()][..], rest].concat();
            long::build_and_run(&["cowshed-real", "cowshed"], &args)
        }
        Some(("logs", rest)) => long::build_and_run(&["cowshed-xfslogs"], rest),
        _ => bail!(
            "cargo xtask xfs logs [--count N] [--seed S] [--flips N] [--focus LOAD], or\n       cargo xtask xfs matrix \
             [--all] [--small] [--count N] [--seed S] [--only TEXT]"
        ),
    }
}
