//! A tree of files: copied, archived, listed, searched, removed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::super::Bench;
use super::super::column::Place;
use super::generate::{self, NEEDLE, Shape};
use super::{Done, Sizes, Sources, count_names, ensure_gone, ensure_same, program, record};

const COPY: &str = "cp -a";
const UNPACK: &str = "tar x";
const REMOVE_WARM: &str = "rm -r, warm";
const REMOVE_COLD: &str = "rm -r, cold";
pub const LINES: [&str; 13] = [
    COPY,
    LOOKS[0].cold,
    LOOKS[0].warm,
    LOOKS[1].cold,
    LOOKS[1].warm,
    LOOKS[2].cold,
    LOOKS[2].warm,
    LOOKS[3].cold,
    LOOKS[3].warm,
    LOOKS[4].warm,
    UNPACK,
    REMOVE_WARM,
    REMOVE_COLD,
];

/// Files at scale 1.
const FILES: f64 = 20_000.0;
/// As in /usr/share of a Debian system: at 5, 15 ... 95, and 99 %. The last step is wider there; so
/// the mean is about the same without files of many MiB.
const SIZES: &Sizes = &[0, 229, 489, 694, 954, 1166, 1441, 1806, 2785, 5794, 30_959, 162_343];

/// A program that looks at the tree, and whose output says how much it saw.
struct Look {
    cold: &'static str,
    warm: &'static str,
    program: &'static [&'static str],
    /// What of its output is the same wherever the tree is.
    saw: Saw,
}

enum Saw {
    Lines,
    Bytes,
}

const LOOKS: [Look; 5] = [
    look("ls -lR, cold", "ls -lR, warm", &["ls", "-lR", "."], Saw::Lines),
    look("find, cold", "find, warm", &["find", "."], Saw::Lines),
    look("du, cold", "du, warm", &["du", "-a", "."], Saw::Lines),
    look("tar c, cold", "tar c, warm", &["tar", "-c", "-f", "-", "."], Saw::Bytes),
    // Cold it is a second `tar c`.
    look("", "grep -r, warm", &["grep", "-r", "-F", NEEDLE, "."], Saw::Lines),
];

const fn look(cold: &'static str, warm: &'static str, program: &'static [&'static str], saw: Saw) -> Look {
    Look {
        cold,
        warm,
        program,
        saw,
    }
}

impl Look {
    fn run(&self, sources: &Sources, dir: &Path) -> Result<(Done, u64)> {
        let (name, args) = self.program.split_first().context("a program has a name")?;
        let done = sources.run(&mut program(name, args, dir))?;
        let saw = match self.saw {
            Saw::Lines => done.lines()? as u64,
            Saw::Bytes => done.bytes()?,
        };
        Ok((done, saw))
    }
}

pub struct Source {
    path: PathBuf,
    archive: PathBuf,
    names: usize,
    /// What each of [`LOOKS`] sees of it.
    saw: Vec<u64>,
}

impl Source {
    pub fn make(sources: &Sources, scale: f64, given: Option<&Path>) -> Result<Source> {
        let path = match given {
            Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
            None => {
                let path = sources.path("tree");
                let shape = Shape {
                    seed: 1,
                    files: (FILES * scale).max(100.0) as usize,
                    files_of_each_dir: 14,
                    sizes: SIZES,
                    link_every: 12,
                };
                generate::generate(&path, &shape)?;
                path
            }
        };
        let archive = sources.path("tree.tar");
        sources.run(
            Command::new("tar")
                .arg("-cf")
                .arg(&archive)
                .arg("-C")
                .arg(&path)
                .arg("."),
        )?;
        let saw = LOOKS
            .iter()
            .map(|look| Ok(look.run(sources, &path)?.1))
            .collect::<Result<_>>()?;
        Ok(Source {
            names: count_names(sources, &path)?,
            path,
            archive,
            saw,
        })
    }
}

pub fn run(bench: &mut Bench<'_>, place: &mut Place, sources: &Sources) -> Result<()> {
    let source = sources.tree.as_ref().context("the tree was made")?;
    let (copy, unpacked) = (place.mountpoint().join("copy"), place.mountpoint().join("unpacked"));
    let done = sources.run(Command::new("cp").arg("-a").arg(&source.path).arg(&copy))?;
    record(bench, place, COPY, &done)?;
    ensure_same(sources, &source.path, &copy)?;
    for (look, expected) in LOOKS.iter().zip(&source.saw) {
        let states: &[&str] = if look.cold.is_empty() {
            &[look.warm]
        } else {
            &[look.cold, look.warm]
        };
        for name in LINES.into_iter().filter(|line| states.contains(line)) {
            if name == look.cold {
                place.remount()?;
            }
            let (done, saw) = look.run(sources, &copy)?;
            ensure!(saw == *expected, "{name} saw {saw}, of the source {expected}");
            record(bench, place, name, &done)?;
        }
    }
    std::fs::create_dir(&unpacked)?;
    let mut unpack = Command::new("tar");
    let done = sources.run(unpack.arg("-xf").arg(&source.archive).arg("-C").arg(&unpacked))?;
    record(bench, place, UNPACK, &done)?;
    ensure!(count_names(sources, &unpacked)? == source.names, "tar x left names out");
    ensure_same(sources, &copy, &unpacked)?;
    remove(bench, place, sources, (REMOVE_WARM, &unpacked))?;
    place.remount()?;
    remove(bench, place, sources, (REMOVE_COLD, &copy))
}

fn remove(bench: &mut Bench<'_>, place: &Place, sources: &Sources, (name, path): (&'static str, &Path)) -> Result<()> {
    let done = sources.run(Command::new("rm").arg("-r").arg(path))?;
    record(bench, place, name, &done)?;
    ensure_gone(path)
}
