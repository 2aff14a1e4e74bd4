//! `cargo xtask arrows`: the tables of docs/ARCHITECTURE.md, compared with the imports in the code.
//! Between crates, arrows point down and are those of the table; between the modules of a crate
//! likewise; files of one module may form a circle only where the table says `(one thing)`.

mod judge;
mod print;
mod table;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;

use crate::{run, sources};
pub use judge::modules_in_circles;
use table::TABLES;

#[derive(ClapArgs)]
pub struct Args {
    /// Print the table of one crate as its code is now, instead of comparing
    #[arg(long, value_name = "CRATE")]
    print: Option<String>,
}

pub fn main(args: &Args) -> Result<()> {
    let root = run::root();
    if let Some(name) = &args.print {
        let packages = sources::packages(&root)?;
        let package = packages
            .iter()
            .find(|package| package.name == *name)
            .context("no such crate")?;
        let splits = table::read(&root.join(TABLES))
            .ok()
            .and_then(|mut tables| tables.modules.remove(name));
        print!("{}", print::table(package, splits.as_ref()));
        return Ok(());
    }
    check()
}

/// Compares the tables with the code. The error lists all faults.
pub fn check() -> Result<()> {
    let report = compare(&run::root())?;
    println!(
        "arrows: {} crates, {} modules, {} arrows as drawn",
        report.crates, report.modules, report.arrows
    );
    for (name, circles) in &report.not_yet {
        println!("arrows: {name}: not yet ({circles} modules in circles)");
    }
    ensure!(
        report.faults.is_empty(),
        "arrows: {} faults\n  {}",
        report.faults.len(),
        report.faults.join("\n  ")
    );
    Ok(())
}

fn compare(root: &Path) -> Result<judge::Report> {
    let tables = table::read(&root.join(TABLES))?;
    Ok(judge::judge(&tables, &sources::packages(root)?))
}

#[cfg(test)]
mod tests;
