//! `cowshed tree`, `du`, `df`: what there is, and what it takes.

use std::collections::HashSet;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use cowshed_device::OpenMode;

use super::session::{Place, Session, reason};
use super::side::{Follow, Stat};
use super::walk::{Descend, When, walk};
use crate::people::printable;

#[derive(Args, Debug)]
pub struct TreeArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    all: bool,
    /// Directories alone
    #[arg(short, long)]
    dirs_only: bool,
    /// So many levels
    #[arg(short = 'L', long, value_name = "LEVEL")]
    level: Option<usize>,
}

pub fn run_tree(args: &TreeArgs, session: &Session<'_>) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut dirs, mut files) = (0_u64, 0_u64);
    for path in &args.paths {
        let (_, start) = session.in_image(path, OpenMode::ReadOnly)?;
        writeln!(out, "{}", printable(&start.shown))?;
        let stat = match start.stat(Follow::Yes) {
            Ok(stat) => stat,
            Err(error) => {
                session.cannot("access", &start, &error);
                continue;
            }
        };
        let mut todo = Vec::new();
        if stat.is_dir() {
            todo = children(args, session, &start, "", 1);
        }
        while let Some((place, lead, is_last, depth)) = todo.pop() {
            let stat = match place.stat(Follow::No) {
                Ok(stat) => stat,
                Err(error) => {
                    session.cannot("access", &place, &error);
                    continue;
                }
            };
            let arm = if is_last { "└── " } else { "├── " };
            write!(out, "{lead}{arm}{}", printable(place.name()))?;
            if stat.is_symlink()
                && let Ok(target) = place.side.read_link(&place.path)
            {
                write!(out, " -> {}", printable(target))?;
            }
            writeln!(out)?;
            match stat.is_dir() {
                true => {
                    dirs += 1;
                    let lead = format!("{lead}{}", if is_last { "    " } else { "│   " });
                    todo.extend(children(args, session, &place, &lead, depth + 1));
                }
                false => files += 1,
            }
        }
    }
    let plural = |count: u64, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    };
    write!(out, "\n{}", plural(dirs, "directory", "directories"))?;
    match args.dirs_only {
        true => writeln!(out)?,
        false => writeln!(out, ", {}", plural(files, "file", "files"))?,
    }
    out.flush()?;
    Ok(())
}

type Branch = (Place, String, bool, usize);

/// What is in a directory, the last name first.
fn children(args: &TreeArgs, session: &Session<'_>, dir: &Place, lead: &str, depth: usize) -> Vec<Branch> {
    if args.level.is_some_and(|level| depth > level) {
        return Vec::new();
    }
    let mut names = match dir.side.names(&dir.path) {
        Ok(names) => names,
        Err(error) => {
            session.cannot("open directory", dir, &error);
            return Vec::new();
        }
    };
    names.retain(|name| args.all || !name.as_bytes().starts_with(b"."));
    let mut places: Vec<Place> = names.iter().map(|name| dir.join(name)).collect();
    if args.dirs_only {
        places.retain(|place| place.stat(Follow::No).is_ok_and(|stat| stat.is_dir()));
    }
    places.reverse();
    let branch = |(index, place)| (place, lead.to_owned(), index == 0, depth);
    places.into_iter().enumerate().map(branch).collect()
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// IMAGE:/PATH; with --subvolumes also a directory on a mount, or an image
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Subvolumes of the volume instead of files: what each refers to, and what of it no other does
    #[arg(long, conflicts_with_all = ["summarize", "all", "apparent_size", "bytes", "total", "max_depth"])]
    pub subvolumes: bool,
    /// With --subvolumes: print JSON
    #[arg(long, requires = "subvolumes")]
    pub json: bool,
    /// Only the sum of each path
    #[arg(short, long)]
    summarize: bool,
    /// Files, too
    #[arg(short, long)]
    all: bool,
    /// Units such as K and M
    #[arg(short, long)]
    pub human_readable: bool,
    /// Bytes of contents instead of space on disk
    #[arg(long)]
    apparent_size: bool,
    /// In bytes, of contents
    #[arg(short, long)]
    bytes: bool,
    /// A sum of all paths
    #[arg(short = 'c', long)]
    total: bool,
    /// Directories so deep
    #[arg(short = 'd', long, value_name = "DEPTH")]
    max_depth: Option<usize>,
}

pub fn run_du(args: &DuArgs, session: &Session<'_>) -> Result<()> {
    if args.subvolumes {
        bail!("--subvolumes is for the command line");
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut counted = HashSet::new();
    let mut total = 0;
    for path in &args.paths {
        let (_, start) = session.in_image(path, OpenMode::ReadOnly)?;
        // Sums of the directories that the walk is in.
        let mut sums: Vec<u64> = vec![0];
        let mut written = Ok(());
        let _ = walk(&start, Follow::No, &mut |seen| {
            let visit = match seen {
                Ok(visit) => visit,
                Err((place, error)) => {
                    session.cannot("access", place, &error);
                    return ControlFlow::Continue(Descend::No);
                }
            };
            let stat = visit.stat;
            if visit.when == When::After {
                let sum = sums.pop().unwrap_or(0);
                if let Some(above) = sums.last_mut() {
                    *above += sum;
                }
                let is_shown = match args.summarize {
                    true => visit.depth == 0,
                    false => args.max_depth.is_none_or(|max| visit.depth <= max),
                };
                if is_shown {
                    written = line(&mut out, args, sum, &printable(&visit.place.shown));
                }
            } else if stat.nlink > 1 && !stat.is_dir() && !counted.insert((start.side.identity(), stat.dev, stat.ino)) {
                return ControlFlow::Continue(Descend::No);
            } else if stat.is_dir() {
                sums.push(taken(args, stat));
            } else {
                if let Some(above) = sums.last_mut() {
                    *above += taken(args, stat);
                }
                let is_shown = visit.depth == 0 || (args.all && !args.summarize);
                if is_shown && args.max_depth.is_none_or(|max| visit.depth <= max) {
                    written = line(&mut out, args, taken(args, stat), &printable(&visit.place.shown));
                }
            }
            match &written {
                Ok(()) => ControlFlow::Continue(Descend::Yes),
                Err(_) => ControlFlow::Break(()),
            }
        });
        written?;
        total += sums.first().copied().unwrap_or(0);
    }
    if args.total {
        line(&mut out, args, total, "total")?;
    }
    out.flush()?;
    Ok(())
}

fn taken(args: &DuArgs, stat: &Stat) -> u64 {
    match args.apparent_size || args.bytes {
        true if matches!(stat.kind, cowshed::FileKind::Regular | cowshed::FileKind::Symlink) => stat.size_bytes,
        true => 0,
        false => stat.blocks_512 * 512,
    }
}

fn line(out: &mut impl std::io::Write, args: &DuArgs, bytes: u64, name: &str) -> std::io::Result<()> {
    let size = match (args.human_readable, args.bytes) {
        (true, _) => human(bytes),
        (false, true) => bytes.to_string(),
        (false, false) => bytes.div_ceil(1024).to_string(),
    };
    writeln!(out, "{size}\t{name}")
}

/// As `ls -h`: rounded up, one digit behind the point below ten.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit_bytes = 1024_u64;
    for unit in ["K", "M", "G", "T", "P"] {
        let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit_bytes));
        if tenths < 100 {
            return format!("{}.{}{unit}", tenths / 10, tenths % 10);
        }
        let whole = bytes.div_ceil(unit_bytes);
        if whole < 1024 {
            return format!("{whole}{unit}");
        }
        unit_bytes <<= 10;
    }
    format!("{}E", bytes.div_ceil(unit_bytes))
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Units such as K and M
    #[arg(short, long)]
    human_readable: bool,
}

pub fn run_df(args: &DfArgs, session: &Session<'_>) -> Result<()> {
    let mut lines: Vec<[String; 6]> = Vec::new();
    let size_head = if args.human_readable { "Size" } else { "1K-blocks" };
    let free_head = if args.human_readable { "Avail" } else { "Available" };
    lines.push(["Filesystem", size_head, "Used", free_head, "Use%", "Mounted on"].map(str::to_owned));
    for path in &args.paths {
        let (image, place) = session.in_image(path, OpenMode::ReadOnly)?;
        let stat = place.stat(Follow::Yes).and_then(|_| image.statfs());
        let stat = match stat {
            Ok(stat) => stat,
            Err(error) => {
                session.complain(format_args!("{}: {}", printable(&place.shown), reason(&error)));
                continue;
            }
        };
        let bytes = |blocks: u64| blocks * u64::from(stat.frsize);
        let (all, free) = (bytes(stat.blocks), bytes(stat.blocks_available));
        let used = all.saturating_sub(bytes(stat.blocks_free));
        let show = |bytes: u64| match args.human_readable {
            true => human(bytes),
            false => bytes.div_ceil(1024).to_string(),
        };
        let percent = match used + free {
            0 => "-".to_owned(),
            sum => format!("{}%", (used * 100).div_ceil(sum)),
        };
        let shown = printable(&place.shown);
        let name = shown.split(":/").next().unwrap_or(&shown).to_owned();
        lines.push([name, show(all), show(used), show(free), percent, "-".to_owned()]);
    }
    let mut out = std::io::stdout().lock();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    for [name, size, used, free, percent, mounted] in &lines {
        writeln!(
            out,
            "{name:<a$} {size:>b$} {used:>c$} {free:>d$} {percent:>e$} {mounted}",
            a = widths[0],
            b = widths[1],
            c = widths[2],
            d = widths[3],
            e = widths[4],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_rounded_up_as_by_coreutils() {
        let shown = [0, 1023, 1024, 1025, 10 << 10, (10 << 10) + 1, 1 << 20, (1 << 20) - 1].map(human);
        assert_eq!(shown, ["0", "1023", "1.0K", "1.1K", "10K", "11K", "1.0M", "1.0M"]);
    }
}
