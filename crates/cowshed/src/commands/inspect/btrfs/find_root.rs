//! `inspect find-root`: blocks that may be roots of a tree as of earlier commits. And the same as
//! `btrfs-find-root`, with the flags and words of btrfs-find-root(8).

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::Result;
use btrfs_format::render::tree_text;
use btrfs_format::{Generation, LogicalAddr, TreeId};
use btrfs_store::volume::{FoundRoot, RootSearch};
use clap::{Args, Parser};
use indicatif::{ProgressBar, ProgressStyle};

use super::super::targets::{Targets, address};
use super::reader::Reader;
use super::tree::tree_id;

/// The name that the program is called by.
pub const NAME: &str = "btrfs-find-root";

#[derive(Args, Debug)]
#[command(after_help = "\
A root of the root tree that is listed can be used with -o rescue=root=ADDRESS by ls, extract, cp, export and mount, \
and with btrfs restore -t ADDRESS.")]
pub struct FindRootArgs {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Debug)]
struct Which {
    /// Accepted: all that there is of metadata is searched in any case
    #[arg(short = 'a')]
    all: bool,
    /// From this generation on
    #[arg(short = 'g', value_name = "GENERATION", value_parser = address, default_value = "0")]
    generation: u64,
    /// Roots of this tree: a number, or a name as of inspect tree
    #[arg(short = 'o', value_name = "OBJECTID", value_parser = tree_id, default_value = "root")]
    tree: TreeId,
    /// From this level on
    #[arg(short = 'l', value_name = "LEVEL", default_value = "0")]
    level: u8,
}

impl FindRootArgs {
    pub fn targets(&self) -> &[PathBuf] {
        &self.targets.targets
    }
}

/// What else is known of a root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Current,
    Backup,
    None,
}

impl Mark {
    fn text(self) -> &'static str {
        match self {
            Mark::Current => "current",
            Mark::Backup => "backup",
            Mark::None => "",
        }
    }
}

/// The roots of a tree that the superblock or the root tree names.
struct Known {
    current: Option<LogicalAddr>,
    backups: Vec<(Generation, LogicalAddr)>,
}

impl Known {
    fn of(reader: &Reader, tree: TreeId) -> Known {
        let superblock = reader.volume.superblock();
        // Where the root tree cannot be read, nothing says which root of another tree it is.
        let current = match reader.volume.is_of_the_past() {
            true => None,
            false => reader.root(tree).ok().flatten().map(LogicalAddr),
        };
        let backups = superblock.super_roots.iter().filter_map(|backup| {
            let (generation, addr) = match tree {
                TreeId::ROOT => (backup.tree_root_gen, backup.tree_root),
                TreeId::CHUNK => (backup.chunk_root_gen, backup.chunk_root),
                TreeId::EXTENT => (backup.extent_root_gen, backup.extent_root),
                TreeId::FS => (backup.fs_root_gen, backup.fs_root),
                TreeId::DEV => (backup.dev_root_gen, backup.dev_root),
                TreeId::CSUM => (backup.csum_root_gen, backup.csum_root),
                _ => return None,
            };
            Some((generation.into(), addr.into()))
        });
        Known {
            current,
            backups: backups.collect(),
        }
    }

    fn mark(&self, found: &FoundRoot) -> Mark {
        if self.current == Some(found.addr) {
            Mark::Current
        } else if self.backups.contains(&(found.generation, found.addr)) {
            Mark::Backup
        } else {
            Mark::None
        }
    }
}

fn search(reader: &Reader, which: &Which) -> Vec<FoundRoot> {
    let search = RootSearch {
        tree: which.tree,
        generation_min: Generation(which.generation),
        level_min: which.level,
    };
    if !std::io::stderr().is_terminal() {
        return reader.volume.find_roots(&search, &mut |_, _| {});
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    let found = reader.volume.find_roots(&search, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    found
}

/// Lists them, the newest first. The exit code is 1 where there is none.
pub fn run(args: &FindRootArgs) -> Result<u8> {
    let reader = Reader::open_to_search(&args.targets.targets)?;
    let found = search(&reader, &args.which);
    let known = Known::of(&reader, args.which.tree);
    let mut out = std::io::stdout().lock();
    if args.targets.json {
        let list: Vec<_> = found
            .iter()
            .map(|root| {
                let mark = known.mark(root);
                serde_json::json!({
                    "address": root.addr.get(),
                    "generation": root.generation.get(),
                    "level": root.level,
                    "current": mark == Mark::Current,
                    "backup": mark == Mark::Backup,
                })
            })
            .collect();
        writeln!(out, "{:#}", serde_json::Value::Array(list))?;
    } else if !found.is_empty() {
        writeln!(out, "{:>20} {:>12} {:>5}", "address", "generation", "level")?;
        for root in &found {
            let (addr, generation) = (root.addr.get(), root.generation.get());
            let line = format!(
                "{addr:>20} {generation:>12} {:>5}  {}",
                root.level,
                known.mark(root).text()
            );
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    out.flush()?;
    if found.is_empty() {
        crate::people::warn(format_args!(
            "cowshed: no root of tree {} is found",
            tree_text(args.which.tree)
        ));
    }
    Ok(u8::from(found.is_empty()))
}

#[derive(Parser, Debug)]
#[command(name = NAME, about = "Attempt to find tree roots on the device", disable_version_flag = true)]
struct Named {
    #[command(flatten)]
    which: Which,
    /// A device or image
    device: PathBuf,
}

/// Runs it under that name. Returns its exit code.
pub fn run_named() -> u8 {
    let named = match Named::try_parse() {
        Ok(named) => named,
        Err(error) => {
            // Nothing is left to say if that cannot be printed.
            let _ = error.print();
            return u8::from(error.use_stderr());
        }
    };
    match print_as_stock(&named) {
        Ok(()) => 0,
        Err(error) if crate::people::is_broken_pipe(&error) => 0,
        Err(error) => {
            crate::people::warn(format_args!("ERROR: {error:#}\nERROR: open ctree failed"));
            1
        }
    }
}

fn print_as_stock(named: &Named) -> Result<()> {
    let reader = Reader::open_to_search(std::slice::from_ref(&named.device))?;
    let superblock = reader.volume.superblock();
    let tree = named.which.tree;
    let wanted = match tree {
        TreeId::ROOT => Some((superblock.generation.get(), superblock.root_level)),
        TreeId::CHUNK => Some((superblock.chunk_root_generation.get(), superblock.chunk_root_level)),
        _ => None,
    };
    let mut out = std::io::stdout().lock();
    match wanted {
        Some((generation, level)) => {
            writeln!(out, "Superblock thinks the generation is {generation}")?;
            writeln!(out, "Superblock thinks the level is {level}")?;
        }
        None => {
            writeln!(out, "Superblock doesn't contain generation info for root {}", tree.0)?;
            writeln!(out, "Superblock doesn't contain the level info for root {}", tree.0)?;
        }
    }
    let mut found = search(&reader, &named.which);
    let is_wanted = |root: &FoundRoot| wanted == Some((root.generation.get(), root.level));
    if !named.which.all
        && let Some(at) = found.iter().position(is_wanted)
    {
        let root = found.remove(at);
        let (addr, generation) = (root.addr.get(), root.generation.get());
        writeln!(out, "Found tree root at {addr} gen {generation} level {}", root.level)?;
    }
    for root in found {
        let verdict = match wanted {
            None => "but we are unsure about the correct generation/level".to_owned(),
            Some(_) if is_wanted(&root) => "and it matches superblock".to_owned(),
            Some((generation, level)) => {
                format!("but generation/level doesn't match, want gen: {generation} level: {level}")
            }
        };
        let (addr, generation, level) = (root.addr.get(), root.generation.get(), root.level);
        writeln!(
            out,
            "Well block {addr}(gen: {generation} level: {level}) seems good, {verdict}"
        )?;
    }
    Ok(out.flush()?)
}
