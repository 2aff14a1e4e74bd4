//! The workspace's own sources, parsed: packages, their modules, and which module names which.

mod circles;
mod module;
mod read;
mod resolve;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

pub use circles::circles;
pub use module::Module;
pub use read::{attributes, is_test_only};
pub use resolve::Arrow;

/// A package of the workspace.
#[derive(Debug)]
pub struct Package {
    pub name: String,
    /// Its directory, relative to the workspace.
    pub dir: PathBuf,
    /// Packages of the workspace that it needs, without those of its tests.
    pub needs: BTreeSet<String>,
    /// The modules of its library and its programs, without tests. The roots are called `lib` and
    /// by the name of the program's file (`main`).
    pub modules: Vec<Module>,
    /// The library's name in paths.
    lib: Option<String>,
}

/// Reads all packages of the workspace in `root`.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let text = crate::run::output(command.current_dir(root))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let root = root.canonicalize()?;
    let packages = list(&metadata["packages"]);
    packages.map(|package| one(&root, package)).collect()
}

fn one(root: &Path, value: &Value) -> Result<Package> {
    let name = text(&value["name"])?;
    let manifest = PathBuf::from(text(&value["manifest_path"])?);
    let dir = manifest
        .parent()
        .context("a manifest lies in a directory")?
        .strip_prefix(root)?
        .to_owned();
    let is_ours = |dependency: &&Value| dependency["path"].is_string() && dependency["kind"].is_null();
    let needs = list(&value["dependencies"])
        .filter(is_ours)
        .map(|d| text(&d["name"]))
        .collect::<Result<_>>()?;
    let mut package = Package {
        name,
        dir,
        needs,
        modules: Vec::new(),
        lib: None,
    };
    for target in list(&value["targets"]) {
        let path = PathBuf::from(text(&target["src_path"])?);
        match target["kind"][0].as_str() {
            Some("lib") => {
                package.lib = Some(text(&target["name"])?.replace('-', "_"));
                read::tree(root, &path, "lib", &mut package.modules)?;
            }
            Some("bin") => {
                let name = path
                    .file_stem()
                    .and_then(|stem| stem.to_str())
                    .context("a program's name")?
                    .to_owned();
                read::tree(root, &path, &name, &mut package.modules)?;
            }
            _ => {}
        }
    }
    Ok(package)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().context("cargo metadata gives a string")?.to_owned())
}
