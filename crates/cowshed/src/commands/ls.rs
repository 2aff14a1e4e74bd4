//! `cowshed ls`: lists directories of a volume that is not mounted. Times are in UTC.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use cowshed::{FileKind, Metadata, Volume};
use serde_json::{Value, json};

use super::files::{Base, human};
use super::named::{Named, named};
use crate::devices::ReadArgs;
use crate::people::{Names, bytes_json, metadata_json, mode_text, printable, time_text};

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// IMAGE:/PATH, or an image file or block device
    #[arg(default_value = ".", hide_default_value = true)]
    target: PathBuf,
    /// More of them, or files and directories in the volume
    paths: Vec<PathBuf>,
    /// With mode, links, owner, size, time
    #[arg(short, long)]
    long: bool,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    all: bool,
    /// What is in subdirectories, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Directories themselves, not what is in them
    #[arg(short, long)]
    directory: bool,
    /// Inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Numbers of users and groups instead of their names (implies -l)
    #[arg(short = 'n', long)]
    numeric_uid_gid: bool,
    /// Sizes with units such as K and M
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// One name in a line, as always
    #[arg(short = '1')]
    one_in_a_line: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

/// One line of a listing.
struct Line {
    name: OsString,
    meta: Metadata,
    target: Option<PathBuf>,
}

/// How to list.
struct Lister<'a> {
    args: &'a LsArgs,
    names: Names,
    escape: bool,
    out: std::io::BufWriter<std::io::StdoutLock<'static>>,
    json: Vec<Value>,
    code: u8,
    printed: bool,
    is_headed: bool,
}

pub fn run(args: &LsArgs, base: &Base) -> Result<u8> {
    let stdout = std::io::stdout();
    let all = named(base, &args.target, &args.paths, &[PathBuf::from("/")])?;
    let is_headed = args.recursive || all.iter().map(|named| named.paths.len()).sum::<usize>() > 1;
    let mut lister = Lister {
        args,
        names: if args.numeric_uid_gid {
            Names::default()
        } else {
            Names::load()
        },
        escape: stdout.is_terminal(),
        out: std::io::BufWriter::new(stdout.lock()),
        json: Vec::new(),
        code: 0,
        printed: false,
        is_headed,
    };
    for named in &all {
        Listing {
            volume: named.open(&args.read)?,
            named,
            lister: &mut lister,
        }
        .list_all()?;
    }
    if args.json {
        let value = Value::Array(std::mem::take(&mut lister.json));
        writeln!(lister.out, "{value:#}")?;
    }
    lister.out.flush()?;
    Ok(lister.code)
}

/// What is listed of one image.
struct Listing<'a, 'l> {
    volume: Volume,
    named: &'a Named,
    lister: &'a mut Lister<'l>,
}

impl Listing<'_, '_> {
    /// Files first, then directories, as ls does.
    fn list_all(&mut self) -> Result<()> {
        let mut dirs = Vec::new();
        let mut lines = Vec::new();
        for path in &self.named.paths {
            let found = self.volume.symlink_metadata(path).and_then(|meta| {
                // A link to a directory is listed as one, unless its own facts are asked for.
                let leads_to_dir = !self.lister.is_long() && self.volume.metadata(path).is_ok_and(|m| m.is_dir());
                Ok((
                    self.line(self.named.shown(path).into(), path, meta)?,
                    meta.is_dir() || leads_to_dir,
                ))
            });
            match found {
                Ok((_, true)) if !self.lister.args.directory => dirs.push(path.clone()),
                Ok((line, _)) => lines.push(line),
                Err(error) => self.complain(path, &error),
            }
        }
        if !lines.is_empty() {
            self.lister.print(None, &lines)?;
        }
        dirs.reverse();
        while let Some(dir) = dirs.pop() {
            let Some(lines) = self.read(&dir) else { continue };
            if self.lister.args.recursive {
                let subdirs = lines.iter().rev().filter(|line| line.meta.is_dir());
                dirs.extend(subdirs.map(|line| dir.join(&line.name)));
            }
            let shown = self.named.shown(&dir);
            self.lister.print(Some(&shown), &lines)?;
        }
        Ok(())
    }

    fn complain(&mut self, path: &Path, error: &cowshed::Error) {
        self.named.complain("ls", "access", path, error);
        self.lister.code = 2;
    }

    fn line(&self, name: OsString, path: &Path, meta: Metadata) -> cowshed::Result<Line> {
        let target = match meta.kind() {
            FileKind::Symlink if self.lister.is_long() || self.lister.args.json => Some(self.volume.read_link(path)?),
            _ => None,
        };
        Ok(Line { name, meta, target })
    }

    /// The lines of a directory in the order of their names; what cannot be read is complained
    /// about.
    fn read(&mut self, dir: &Path) -> Option<Vec<Line>> {
        let entries = match self.volume.read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => {
                self.complain(dir, &error);
                return None;
            }
        };
        let mut lines = Vec::new();
        for entry in entries {
            let line = entry.and_then(|entry| {
                let name = entry.name().to_owned();
                let path = dir.join(&name);
                self.line(name, &path, entry.metadata()?)
            });
            match line {
                Ok(line) if self.lister.args.all || !line.name.as_bytes().starts_with(b".") => lines.push(line),
                Ok(_) => {}
                Err(error) => self.complain(dir, &error),
            }
        }
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        Some(lines)
    }
}

impl Lister<'_> {
    fn is_long(&self) -> bool {
        self.args.long || self.args.numeric_uid_gid
    }

    fn print(&mut self, dir: Option<&Path>, lines: &[Line]) -> Result<()> {
        if self.args.json {
            self.note_json(dir, lines);
            return Ok(());
        }
        if let Some(dir) = dir.filter(|_| self.is_headed) {
            if self.printed {
                writeln!(self.out)?;
            }
            self.name(dir.as_os_str())?;
            writeln!(self.out, ":")?;
        }
        self.printed = true;
        let width = |f: &dyn Fn(&Line) -> usize| lines.iter().map(f).max().unwrap_or(0);
        let widths = [
            width(&|l| l.meta.ino().to_string().len()),
            width(&|l| l.meta.nlink().to_string().len()),
            width(&|l| self.names.user(l.meta.uid()).len()),
            width(&|l| self.names.group(l.meta.gid()).len()),
            width(&|l| size_text(self.args, &l.meta).len()),
        ];
        for line in lines {
            self.print_line(line, widths)?;
        }
        Ok(())
    }

    fn print_line(&mut self, line: &Line, widths: [usize; 5]) -> Result<()> {
        let meta = &line.meta;
        if self.args.inode {
            write!(self.out, "{:>1$} ", meta.ino(), widths[0])?;
        }
        if self.is_long() {
            let (user, group) = (self.names.user(meta.uid()), self.names.group(meta.gid()));
            write!(
                self.out,
                "{} {:>nlink$} {user:<users$} {group:<groups$} {:>sizes$} {} ",
                mode_text(meta.mode()),
                meta.nlink(),
                size_text(self.args, meta),
                time_text(meta.timestamps()[1], false),
                nlink = widths[1],
                users = widths[2],
                groups = widths[3],
                sizes = widths[4],
            )?;
        }
        self.name(&line.name)?;
        if let Some(target) = &line.target {
            write!(self.out, " -> ")?;
            self.name(target.as_os_str())?;
        }
        writeln!(self.out)?;
        Ok(())
    }

    /// A name: as it is for programs, without control characters for a terminal.
    fn name(&mut self, name: &std::ffi::OsStr) -> std::io::Result<()> {
        if self.escape {
            self.out.write_all(printable(name).as_bytes())
        } else {
            self.out.write_all(name.as_bytes())
        }
    }

    fn note_json(&mut self, dir: Option<&Path>, lines: &[Line]) {
        let entries: Vec<Value> = lines
            .iter()
            .map(|line| {
                let path = dir.map_or_else(|| PathBuf::from(&line.name), |dir| dir.join(&line.name));
                let mut value = metadata_json(&path, &line.meta, line.target.as_deref(), &[]);
                value["name"] = bytes_json(line.name.as_bytes());
                value
            })
            .collect();
        match dir {
            Some(dir) => self
                .json
                .push(json!({ "directory": bytes_json(dir.as_os_str().as_bytes()), "entries": entries })),
            None => self.json.push(json!({ "entries": entries })),
        }
    }
}

fn size_text(args: &LsArgs, meta: &Metadata) -> String {
    match meta.kind() {
        FileKind::BlockDevice | FileKind::CharDevice => {
            let (major, minor) = meta.device();
            format!("{major}, {minor}")
        }
        _ if args.human_readable => human(meta.len()),
        _ => meta.len().to_string(),
    }
}
