//! `cargo xtask bench reserved`: metadata held for pending items while empty files are made, beside
//! what a leaf for each item would hold; and the files per second.
//!
//! The load is that of fs_mark (`-S 0 -s 0 -k`): a directory for each caller. The account is
//! `cowshed inspect space` of the live mount, asked for several times a second.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;
use serde_json::Value;

use super::plot::{self, Series};
use super::side::{Mounted, Setup, Side};
use super::table;
use crate::run;

const NAME: &str = "reserved";
/// In docs/.
const PICTURE: &str = "reserved.svg";
/// Rows of the table.
const ROWS: usize = 10;
const MIB: f64 = 1_048_576.0;

#[derive(ClapArgs)]
pub struct Args {
    /// Files in all
    #[arg(long, default_value_t = 2_000_000)]
    files: u64,
    /// Callers, each in a directory of its own
    #[arg(long, default_value_t = 2)]
    callers: u64,
    /// GiB of the volume
    #[arg(long, default_value_t = 2)]
    gib: u64,
    /// Milliseconds between two looks at the account
    #[arg(long, default_value_t = 250)]
    every_ms: u64,
    /// Where the image lies
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Mount options
    #[arg(long, default_value = "")]
    options: String,
    /// Print the table, but leave docs as they are
    #[arg(long)]
    dry_run: bool,
}

/// The account at a moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    files: u64,
    items: u64,
    held_bytes: u64,
    by_items_bytes: u64,
    operations_bytes: u64,
}

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    let setup = Setup {
        image_bytes: Some(args.gib << 30),
        options: &args.options,
        ..Setup::default()
    };
    let mounted = Mounted::with(Side::Ours, &args.dir, &setup)?;
    let samples = measure(args, &mounted.mountpoint())?;
    mounted.finish()?;
    ensure!(
        samples.len() >= ROWS,
        "only {} samples: more files are needed",
        samples.len()
    );
    let text = render(&samples, args);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    std::fs::write(run::root().join("docs").join(PICTURE), picture(&samples))?;
    table::store_named(NAME, &text)
}

fn measure(args: &Args, top: &Path) -> Result<Vec<Sample>> {
    let (made, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let each = args.files / args.callers;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..args.callers)
            .map(|caller| {
                let (dir, made) = (top.join(caller.to_string()), &made);
                scope.spawn(move || -> Result<()> {
                    std::fs::create_dir(&dir)?;
                    for n in 0..each {
                        // Names in no order, as fs_mark's.
                        let name = format!("{:016x}~{n:023}", (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                        File::create(dir.join(&name)).with_context(|| name)?;
                        made.fetch_add(1, Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let sampler = scope.spawn(|| {
            let mut samples = Vec::new();
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(args.every_ms));
                samples.push(look(top, started, &made)?);
            }
            Ok(samples)
        });
        let outcomes: Vec<Result<()>> = callers
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a caller panicked"))))
            .collect();
        is_over.store(true, Relaxed);
        let samples = sampler.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
        outcomes.into_iter().collect::<Result<()>>()?;
        samples
    })
}

fn look(top: &Path, started: Instant, made: &AtomicU64) -> Result<Sample> {
    let program = run::released("cowshed");
    let out = run::output(Command::new(program).args(["inspect", "space", "--json"]).arg(top))?;
    let account: Value = serde_json::from_str(&out)?;
    let number = |value: &Value| value.as_u64().context("a number of the account");
    let pending = &account["pending"];
    Ok(Sample {
        seconds: started.elapsed().as_secs_f64(),
        files: made.load(Relaxed),
        items: number(&pending["items"])?,
        held_bytes: number(&pending["held_bytes"])?,
        by_items_bytes: number(&pending["held_by_items_bytes"])?,
        operations_bytes: number(&account["metadata_reserved_bytes"])?,
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

fn render(samples: &[Sample], args: &Args) -> String {
    let peak = |of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap_or(0);
    let mut text = format!(
        "{} empty files by {} callers on a volume of {} GiB. Peaks: held {:.0} MiB, a leaf for each item {:.0} MiB, \
         operations under way {:.1} MiB.\n\n\
         | seconds | files | files/s since | pending items | held, MiB | a leaf for each item, MiB |\n|---|---|---|---|---|---|\n",
        args.files,
        args.callers,
        args.gib,
        mib(peak(|s| s.held_bytes)),
        mib(peak(|s| s.by_items_bytes)),
        mib(peak(|s| s.operations_bytes)),
    );
    let mut before = (0.0, 0);
    for row in 1..=ROWS {
        let sample = &samples[row * samples.len() / ROWS - 1];
        let rate = (sample.files - before.1) as f64 / (sample.seconds - before.0);
        let _ = writeln!(
            text,
            "| {:.1} | {} | {rate:.0} | {} | {:.1} | {:.1} |",
            sample.seconds,
            sample.files,
            sample.items,
            mib(sample.held_bytes),
            mib(sample.by_items_bytes)
        );
        before = (sample.seconds, sample.files);
    }
    let _ = write!(text, "\n![Metadata held for pending items]({PICTURE})\n");
    text
}

fn picture(samples: &[Sample]) -> String {
    let series = |name: &str, of: fn(&Sample) -> u64| Series {
        name: name.to_owned(),
        points: samples.iter().map(|s| (s.seconds, mib(of(s)))).collect(),
    };
    plot::over_time(
        "Metadata held for pending items while empty files are made",
        "seconds",
        "MiB",
        &[
            series("a leaf for each item", |s| s.by_items_bytes),
            series("held, by leaves", |s| s.held_bytes),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_picture_have_the_samples() {
        let samples: Vec<Sample> = (1..=40)
            .map(|n| Sample {
                seconds: n as f64 / 4.0,
                files: 1000 * n,
                items: 4000 * n,
                held_bytes: n << 20,
                by_items_bytes: (50 * n) << 20,
                operations_bytes: 1 << 20,
            })
            .collect();
        let args = Args {
            files: 40_000,
            callers: 2,
            gib: 2,
            every_ms: 250,
            dir: PathBuf::new(),
            options: String::new(),
            dry_run: true,
        };
        let text = render(&samples, &args);
        assert!(text.contains("held 40 MiB, a leaf for each item 2000 MiB"), "{text}");
        assert!(
            text.contains("| 10.0 | 40000 | 4000 | 160000 | 40.0 | 2000.0 |"),
            "{text}"
        );
        assert_eq!(picture(&samples).matches("<polyline").count(), 2);
    }
}
