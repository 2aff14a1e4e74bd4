//! Test programs that no distribution packages: cargo installs them into a private place of this
//! repository.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cowshed::run_in;

/// A program from crates.io, of a version that we know.
pub struct Tool {
    name: &'static str,
    version: &'static str,
}

pub const FSX: Tool = Tool {
    name: "fsx",
    version: "0.3.2",
};
pub const PJDFSTEST: Tool = Tool {
    name: "pjdfstest",
    version: "0.2.2",
};

/// The repository's top directory.
pub fn repository() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?)
}

impl Tool {
    /// Where the program is, after installing it when it is missing.
    pub fn path(&self) -> Result<PathBuf> {
        let repository = repository()?;
        let root = repository.join("target/tools");
        let path = root.join("bin").join(self.name);
        if path.exists() {
            return Ok(path);
        }
        let what = format!("{}@{}", self.name, self.version);
        println!("installing {what} with cargo into {}", root.display());
        let started = Instant::now();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let root_text = root.to_str().context("a path in UTF-8")?.to_owned();
        let build = format!("{root_text}/build");
        // Their own work is little: a quick build is worth more than a quick program.
        let args = ["install", "--quiet", "--locked", "--debug", "--root", &root_text];
        let args = [&args[..], &["--target-dir", &build, &what]].concat();
        run_in(&repository, cargo, &args)?;
        println!("installed in {:.0} s", started.elapsed().as_secs_f64());
        Ok(path)
    }
}
