//! Checks the licences of all dependencies against the list that `cargo deny` uses.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run;

/// The `allow` list of deny.toml, read without a TOML parser: one quoted licence per line.
fn allowed() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(run::root().join("deny.toml")).context("deny.toml")?;
    let list = text
        .split("allow = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .context("deny.toml: no allow list")?;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// True where one alternative of the expression has only allowed licences.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    flat.split(" OR ")
        .any(|all| all.split(" AND ").all(|one| allowed.iter().any(|a| a == one.trim())))
}

pub fn main() -> Result<()> {
    let allowed = allowed()?;
    let text = run::output(&mut run::cargo(&[
        "metadata",
        "--format-version=1",
        "--locked",
        "--offline",
    ]))
    .or_else(|_| run::output(&mut run::cargo(&["metadata", "--format-version=1"])))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists packages")?;
    let mut bad = Vec::new();
    for package in packages {
        let license = package["license"].as_str().unwrap_or("(none)");
        if !is_allowed(license, &allowed) {
            bad.push(format!("{} {}: {license}", package["name"], package["version"]));
        }
    }
    if bad.is_empty() {
        println!("licences: {} packages, all allowed", packages.len());
        return Ok(());
    }
    bail!("licences that deny.toml does not allow:\n  {}", bad.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_alternative_is_enough_and_all_parts_of_it_count() {
        let allowed = ["MIT".to_owned(), "ISC".to_owned()];
        assert!(is_allowed("MIT OR GPL-2.0", &allowed));
        assert!(is_allowed("GPL-2.0/MIT", &allowed));
        assert!(!is_allowed("MIT AND GPL-2.0", &allowed));
        assert!(is_allowed("(MIT AND ISC) OR GPL-2.0", &allowed));
        assert!(!is_allowed("(none)", &allowed));
    }

    #[test]
    fn the_list_is_read() {
        let list = allowed().unwrap();
        assert!(
            list.iter().any(|l| l == "Apache-2.0") && !list.iter().any(|l| l.contains("GPL")),
            "{list:?}"
        );
    }
}
