//! `cowshed compsize`: what files take on disk, by kind of compression.

use std::collections::{BTreeMap, HashSet};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed::{Extent, ExtentKind};
use serde_json::{Value, json};

use crate::people::size_text;

use super::fatal::Fatal;
use super::{each_file, maps, open_to_read};

#[derive(Args, Debug)]
#[command(after_help = "\
Disk usage: bytes that extents take, each counted once however many files refer to it. Uncompressed: what they hold.
Referenced: what the files hold of them. Extents that are shared with files not named count as a whole, too. Dirty data
that has no place yet is not counted: sync first. The paths lie on one mount of ours.")]
pub struct CompsizeArgs {
    /// Files, and directories with all below them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Exact bytes instead of k, m, g
    #[arg(short, long)]
    bytes: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    disk: u64,
    uncompressed: u64,
    referenced: u64,
}

#[derive(Default)]
struct Sums {
    files: u64,
    extents: u64,
    references: u64,
    inline: u64,
    by_type: BTreeMap<&'static str, Sizes>,
    seen: HashSet<u64>,
}

fn type_name(extent: &Extent) -> &'static str {
    match (extent.kind, extent.compression) {
        (ExtentKind::Unwritten, _) => "prealloc",
        (_, 0) => "none",
        (_, 1) => "zlib",
        (_, 2) => "lzo",
        (_, 3) => "zstd",
        _ => "unknown",
    }
}

impl Sums {
    fn add(&mut self, extent: &Extent) {
        let entry = |sums: &mut BTreeMap<_, Sizes>, of: Sizes| {
            let sizes = sums.entry(type_name(extent)).or_default();
            sizes.disk += of.disk;
            sizes.uncompressed += of.uncompressed;
            sizes.referenced += of.referenced;
        };
        let mut sizes = Sizes {
            disk: extent.disk_bytes,
            uncompressed: extent.ram_bytes,
            referenced: extent.len_bytes,
        };
        match extent.kind {
            ExtentKind::Delalloc => return,
            ExtentKind::Inline => self.inline += 1,
            ExtentKind::Data | ExtentKind::Unwritten => {
                self.references += 1;
                if self.seen.insert(extent.disk_addr) {
                    self.extents += 1;
                } else {
                    (sizes.disk, sizes.uncompressed) = (0, 0);
                }
            }
        }
        entry(&mut self.by_type, sizes);
    }

    fn total(&self) -> Sizes {
        self.by_type.values().fold(Sizes::default(), |a, b| Sizes {
            disk: a.disk + b.disk,
            uncompressed: a.uncompressed + b.uncompressed,
            referenced: a.referenced + b.referenced,
        })
    }
}

pub fn run(args: &CompsizeArgs) -> Result<u8> {
    let mut sums = Sums::default();
    let code = each_file(&args.paths, true, &mut |path| {
        let file = open_to_read(path)?;
        let is_ours = maps::each(&file, false, &mut |extent| sums.add(extent));
        if !is_ours.with_context(|| path.display().to_string())? {
            bail!(Fatal(format!(
                "{}: not on a mount of ours (see compsize(8))",
                path.display()
            )));
        }
        sums.files += 1;
        Ok(())
    })?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", to_json(&sums))?;
        return Ok(code);
    }
    let plural = |n: u64| if n == 1 { "" } else { "s" };
    writeln!(
        out,
        "Processed {} file{}, {} regular extent{} ({} ref{}), {} inline.",
        sums.files,
        plural(sums.files),
        sums.extents,
        plural(sums.extents),
        sums.references,
        plural(sums.references),
        sums.inline
    )?;
    writeln!(
        out,
        "{}",
        row(
            "Type",
            "Perc",
            ["Disk Usage", "Uncompressed", "Referenced"].map(String::from)
        )
    )?;
    let total = sums.total();
    for (name, sizes) in std::iter::once(("TOTAL", &total)).chain(sums.by_type.iter().map(|(n, s)| (*n, s))) {
        let show = |n: u64| if args.bytes { n.to_string() } else { size_text(n) };
        let percent = format!("{:>3}%", percent(sizes));
        writeln!(
            out,
            "{}",
            row(
                name,
                &percent,
                [sizes.disk, sizes.uncompressed, sizes.referenced].map(show)
            )
        )?;
    }
    Ok(code)
}

fn row(name: &str, percent: &str, sizes: [String; 3]) -> String {
    let [disk, uncompressed, referenced] = sizes;
    let line = format!("{name:<10} {percent:<8} {disk:<12} {uncompressed:<12} {referenced:<12}");
    line.trim_end().into()
}

fn percent(sizes: &Sizes) -> u64 {
    (sizes.disk * 100).checked_div(sizes.uncompressed).unwrap_or(100)
}

fn to_json(sums: &Sums) -> Value {
    let of = |s: &Sizes| json!({ "disk_usage": s.disk, "uncompressed": s.uncompressed, "referenced": s.referenced });
    let types: serde_json::Map<_, _> = sums
        .by_type
        .iter()
        .map(|(name, s)| ((*name).to_owned(), of(s)))
        .collect();
    json!({
        "files": sums.files,
        "extents": sums.extents,
        "references": sums.references,
        "inline": sums.inline,
        "total": of(&sums.total()),
        "types": types,
    })
}
