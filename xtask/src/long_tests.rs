//! Tests that are ignored because they take long, and judge all the same. What only measures, or
//! writes the data of other tests, says so in the first words of its reason.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args as ClapArgs;

use crate::run;

/// First words of the reasons of ignored tests that judge nothing.
const NO_JUDGES: [&str; 3] = ["a measurement", "measures", "writes"];

#[derive(ClapArgs)]
pub struct Args {
    /// Only list them
    #[arg(long)]
    list: bool,
    /// Only those of this package
    #[arg(long)]
    package: Option<String>,
}

pub fn main(args: &Args) -> Result<()> {
    let mut failed = Vec::new();
    for (package, tests) in judges()? {
        if args.package.as_ref().is_some_and(|only| *only != package) {
            continue;
        }
        if args.list {
            println!("{package}: {}", tests.join(" "));
            continue;
        }
        let mut command = run::cargo(&["test", "--quiet", "--tests", "-p", &package, "--", "--ignored"]);
        if let Err(error) = run::run(&format!("{package}: {}", tests.join(" ")), command.args(&tests)) {
            println!("FAILED: {error:#}");
            failed.push(package);
        }
    }
    ensure!(failed.is_empty(), "long tests failed in: {}", failed.join(", "));
    Ok(())
}

/// Names of ignored tests that judge, by package.
fn judges() -> Result<BTreeMap<String, Vec<String>>> {
    let files = run::output(&mut run::command("git", &["ls-files", "*.rs"])).context("which sources there are")?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.lines().filter(|file| !file.starts_with("xtask/")) {
        let text = std::fs::read_to_string(run::root().join(file)).with_context(|| file.to_owned())?;
        let tests = ignored(&text).with_context(|| file.to_owned())?;
        if !tests.is_empty() {
            found.entry(package_of(Path::new(file))?).or_default().extend(tests);
        }
    }
    Ok(found)
}

/// The ignored tests of a source that judge.
fn ignored(text: &str) -> Result<Vec<String>> {
    let mut tests = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("#[ignore") else {
            continue;
        };
        let Some((_, reason)) = rest.split_once('"') else {
            bail!("an ignored test gives no reason");
        };
        let name = lines
            .by_ref()
            .find_map(|line| line.strip_prefix("fn ")?.split('(').next());
        let name = name.context("an ignored test without a function")?;
        if !NO_JUDGES.iter().any(|start| reason.starts_with(start)) {
            tests.push(name.to_owned());
        }
    }
    Ok(tests)
}

/// The package that a source belongs to: the name in the nearest manifest above it.
fn package_of(file: &Path) -> Result<String> {
    let dirs = file.ancestors().skip(1);
    for manifest in dirs
        .map(|dir| run::root().join(dir).join("Cargo.toml"))
        .filter(|m| m.is_file())
    {
        let text = std::fs::read_to_string(&manifest)?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = "));
        if let Some(name) = name {
            return Ok(name.trim_matches('"').to_owned());
        }
    }
    bail!("{} belongs to no package", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_are_told_from_measurements() {
        let text = "#[test]\n#[ignore = \"a minute\"]\nfn judge() {}\n    #[ignore = \"a measurement, for a profiler\"]\n    fn speed() {}\n";
        assert_eq!(ignored(text).unwrap(), ["judge"]);
        assert!(ignored("#[ignore]\nfn what() {}").is_err());
    }

    #[test]
    fn all_packages_are_found() {
        let found = judges().unwrap();
        for package in ["cowshed-btrfs", "btrfs-image", "btrfs-format", "cowshed-harness"] {
            assert!(found.contains_key(package), "{package} of {found:?}");
        }
    }
}
