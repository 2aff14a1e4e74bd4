//! Manual pages and completions, made from the command line's own description.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Where the pages go, one for each command; without it the main page is printed
    dir: Option<PathBuf>,
}

pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "cowshed", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(0)
}

pub fn man(args: &ManArgs, command: Command) -> Result<u8> {
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(command, dir))
                .with_context(|| dir.display().to_string())?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(0)
}
