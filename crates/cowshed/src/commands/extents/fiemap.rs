//! `cowshed fiemap`: where a file lies, as `filefrag -v` shows it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::maps::{Line, flag};
use super::{kernel, maps, open_to_read};
use crate::devices::{self, ReadArgs};
use crate::people::printable;

#[derive(Args, Debug)]
#[command(after_help = "\
Offsets and lengths are in blocks of 4096 bytes, as filefrag(8) has them (of inline data in bytes). Physical offsets are
logical addresses of the volume; `cowshed inspect extent` tells more of them.")]
pub struct FiemapArgs {
    /// Files on a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The paths are in this image file or block device, which is not mounted
    #[arg(short, long, value_name = "TARGET")]
    image: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

const BLOCK_BYTES: u64 = 4096;

/// Names of flags in the order in which filefrag prints them.
const FLAG_NAMES: [(u32, &str); 8] = [
    (flag::LAST, "last"),
    (flag::UNKNOWN, "unknown_loc"),
    (flag::DELALLOC, "delalloc"),
    (flag::ENCODED, "encoded"),
    (flag::NOT_ALIGNED, "not_aligned"),
    (flag::INLINE, "inline"),
    (flag::UNWRITTEN, "unwritten"),
    (flag::SHARED, "shared"),
];

pub fn run(args: &FiemapArgs) -> Result<u8> {
    let volume = match &args.image {
        Some(target) => Some(devices::open_files(target, &args.read)?),
        None => None,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let (mut code, mut all) = (0, Vec::new());
    for path in &args.paths {
        let mut print = || -> Result<()> {
            let mut printer = Printer::new(&mut out, path, args.json);
            match &volume {
                Some(volume) => {
                    let file = volume.open(path)?;
                    printer.begin(file.metadata()?.len())?;
                    file.extents(0..u64::MAX, true, |extent| printer.take(Line::of(extent)))?;
                }
                None => from_mount(&open_to_read(path)?, &mut printer).with_context(|| path.display().to_string())?,
            }
            all.extend(printer.end()?);
            Ok(())
        };
        match print() {
            Ok(()) => {}
            Err(error) if error.is::<io::Error>() && error.downcast_ref::<io::Error>().is_some_and(is_pipe) => {
                return Err(error);
            }
            Err(error) => {
                crate::people::warn(format_args!("cowshed: {error:#}"));
                code = 2;
            }
        }
    }
    if args.json {
        writeln!(out, "{:#}", Value::Array(all))?;
    }
    out.flush()?;
    Ok(code)
}

fn is_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

fn from_mount(file: &File, printer: &mut Printer<'_>) -> Result<()> {
    printer.begin(file.metadata()?.len())?;
    if !maps::each(file, true, &mut |extent| printer.take(Line::of(extent)))? {
        kernel::fiemap(file, 0, &mut |found| {
            printer.take(Line {
                logical: found.logical,
                physical: found.physical,
                len_bytes: found.len_bytes,
                flags: found.flags & !flag::LAST,
            });
        })?;
    }
    Ok(())
}

/// Prints lines as they come, one behind: the last is known when no other comes.
struct Printer<'o> {
    out: &'o mut dyn Write,
    path: &'o Path,
    is_json: bool,
    size_bytes: u64,
    held: Option<Line>,
    before: Option<Line>,
    count: usize,
    fragments: usize,
    json: Vec<Value>,
    failed: Option<io::Error>,
}

impl<'o> Printer<'o> {
    fn new(out: &'o mut dyn Write, path: &'o Path, is_json: bool) -> Self {
        Self {
            out,
            path,
            is_json,
            size_bytes: 0,
            held: None,
            before: None,
            count: 0,
            fragments: 0,
            json: Vec::new(),
            failed: None,
        }
    }

    fn begin(&mut self, size_bytes: u64) -> io::Result<()> {
        self.size_bytes = size_bytes;
        if self.is_json {
            return Ok(());
        }
        let blocks = size_bytes.div_ceil(BLOCK_BYTES);
        let plural = if blocks == 1 { "" } else { "s" };
        let path = printable(self.path);
        writeln!(
            self.out,
            "File size of {path} is {size_bytes} ({blocks} block{plural} of {BLOCK_BYTES} bytes)"
        )
    }

    fn take(&mut self, line: Line) {
        if let Some(held) = &mut self.held
            && held.merge(&line)
        {
            return;
        }
        if let Some(ready) = self.held.replace(line) {
            self.show(ready);
        }
    }

    fn show(&mut self, line: Line) {
        if self.failed.is_some() {
            return;
        }
        let shown = if self.is_json {
            self.show_json(line)
        } else {
            self.show_text(line)
        };
        self.failed = shown.err();
        self.before = Some(line);
        self.count += 1;
    }

    fn flags(&self, line: Line) -> Vec<&'static str> {
        let named = FLAG_NAMES.iter().filter(|(bit, _)| line.flags & bit != 0);
        let mut names: Vec<_> = named.map(|(_, name)| *name).collect();
        if line.logical + line.len_bytes >= self.size_bytes {
            names.push("eof");
        }
        names
    }

    fn show_json(&mut self, line: Line) -> io::Result<()> {
        self.json.push(json!({
            "logical": line.logical,
            "physical": line.physical,
            "length": line.len_bytes,
            "flags": self.flags(line),
        }));
        Ok(())
    }

    fn show_text(&mut self, line: Line) -> io::Result<()> {
        if self.count == 0 {
            let head = " ext:     logical_offset:        physical_offset: length:   expected: flags:";
            writeln!(self.out, "{head}")?;
        }
        // Inline data is counted in bytes.
        let unit = if line.flags & flag::NOT_ALIGNED != 0 {
            1
        } else {
            BLOCK_BYTES
        };
        let [logical, mut physical, mut len] = [line.logical, line.physical, line.len_bytes].map(|n| n / unit);
        let logical_end = logical + len.saturating_sub(1);
        if line.flags & flag::UNKNOWN != 0 {
            (physical, len) = (0, 0);
        }
        let expected = self.before.map(|b| (b.physical + (line.logical - b.logical)) / unit);
        let expected = expected.filter(|at| *at != line.physical / unit);
        if self.count == 0 || expected.is_some() {
            self.fragments += 1;
        }
        let expected = expected.map_or(String::new(), |at| format!("{at}:"));
        let physical_end = (physical + len).saturating_sub(1).max(physical);
        let flags = self.flags(line).join(",");
        writeln!(
            self.out,
            "{:>4}: {logical:>8}..{logical_end:>8}: {physical:>10}..{physical_end:>10}: {len:>6}: {expected:>11} {flags}",
            self.count
        )
    }

    /// The last line, and the sum; with JSON: what is known of the file.
    fn end(mut self) -> io::Result<Option<Value>> {
        if let Some(mut last) = self.held.take() {
            last.flags |= flag::LAST;
            self.show(last);
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.is_json {
            return Ok(Some(json!({
                "path": self.path.to_string_lossy(),
                "size": self.size_bytes,
                "extents": self.json,
            })));
        }
        let plural = if self.fragments == 1 { "" } else { "s" };
        writeln!(
            self.out,
            "{}: {} extent{plural} found",
            printable(self.path),
            self.fragments
        )?;
        Ok(None)
    }
}
