//! Manual pages and completions, made from the command line's own description.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

use super::btrfs;
use crate::mount_help;

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
    /// The name that the program is called by: cowshed, or btrfs
    #[arg(long, default_value = "cowshed", value_parser = ["cowshed", "btrfs"])]
    name: String,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Where the pages go, one for each command; without it the main page is printed
    dir: Option<PathBuf>,
}

pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<u8> {
    let mut script = Vec::new();
    if args.name == btrfs::NAME {
        command = btrfs::command();
    }
    clap_complete::generate(args.shell, &mut command, &args.name, &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(0)
}

pub fn man(args: &ManArgs, mut command: Command) -> Result<u8> {
    match &args.dir {
        Some(dir) => {
            command.build();
            std::fs::create_dir_all(dir)
                .and_then(|()| write_pages(&command, dir))
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

/// One page for the command and one for each below it.
fn write_pages(command: &Command, dir: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write_pages(below, dir)?;
    }
    let mut page = Vec::new();
    if command.get_name() == "mount" {
        // A list in `--help` is a list here, too, not a paragraph.
        let without_list = command.clone().after_help(clap::builder::Resettable::Reset);
        clap_mangen::Man::new(without_list).render(&mut page)?;
        mount_help::manual().to_writer(&mut page)?;
    } else {
        clap_mangen::Man::new(command.clone()).render(&mut page)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    std::fs::write(dir.join(format!("{name}.1")), page)
}
