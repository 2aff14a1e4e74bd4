//! `cowshed-fuzz`: damaged volumes for as long as you like.

mod corpus;
mod corpus_xfs;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use cowshed_fuzz::{Cases, Options, Summary, guard, run, run_case, seeds, xfs};

#[global_allocator]
static ALLOCATOR: guard::Counting = guard::Counting;

#[derive(Parser)]
#[command(about = "Damaged volumes for the engine and the checker")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Open, read, check and write damaged volumes
    Image(Image),
    /// Open, read and check damaged volumes of XFS
    Xfs(Common),
    /// Make the kernel's volumes that damage starts from anew (needs root)
    Corpus {
        dir: PathBuf,
        /// Those of XFS alone
        #[arg(long)]
        xfs: bool,
    },
}

#[derive(Args)]
struct Image {
    #[command(flatten)]
    common: Common,
    /// Damage logs alone: what they lead to is sound
    #[arg(long)]
    logs: bool,
}

#[derive(Args)]
struct Common {
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which images: the same number gives the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the images of failures in this directory
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Stop after so many different failures
    #[arg(long, default_value_t = 20)]
    failures: usize,
    /// Run one case again, by the number that a failure printed
    #[arg(long, value_parser = number)]
    replay: Option<u64>,
}

fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Corpus { dir, xfs } => {
            if !xfs {
                corpus::make(&dir)?;
            }
            corpus_xfs::make(&dir).map(|()| ExitCode::SUCCESS)
        }
        Command::Image(args) if args.logs => cases(&args.common, &seeds::with_logs()?[..], "image --logs"),
        Command::Image(args) => cases(&args.common, &seeds::all()?[..], "image"),
        Command::Xfs(args) => cases(&args, &xfs::bases()?[..], "xfs"),
    }
}

fn cases<C: Cases + ?Sized>(args: &Common, bases: &C, command: &str) -> Result<ExitCode> {
    guard::install();
    if let Some(case) = args.replay {
        let (image, _) = bases.image(case);
        println!("{}", image.description);
        if let Some(dir) = &args.keep {
            std::fs::create_dir_all(dir)?;
            for (index, device) in image.devices.iter().enumerate() {
                device.save(dir.join(format!("{case:016x}.{index}.img")))?;
            }
        }
        return Ok(match run_case(bases, case) {
            Ok(outcome) => {
                println!("{outcome:#?}\npeak {} MiB", guard::peak_bytes() >> 20);
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("FAILED: {}", failure.what);
                ExitCode::FAILURE
            }
        });
    }
    let options = Options {
        duration: Duration::from_secs(args.seconds),
        images_max: None,
        seed: args.seed,
        keep: args.keep.clone(),
        failures_max: args.failures,
    };
    let summary = run(&options, bases, |so_far| eprintln!("{}", line(so_far)));
    for failure in &summary.failures {
        println!("FAILED: {}", failure.what);
        println!("replay: cowshed-fuzz {command} --replay {:#x}\n", failure.case);
    }
    for (case, what) in &summary.disagreements {
        println!("the checker finds nothing in case {case:#x}, but: {what}");
    }
    println!("{}", line(&summary));
    Ok(ExitCode::from(u8::from(!summary.failures.is_empty())))
}

fn line(summary: &Summary) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    format!(
        "{} images in {seconds:.0} s ({:.0}/s): {} still sound, {} opened, {} for writing, {} committed, \
         {} sound but not readable, {} failures",
        summary.images,
        summary.images as f64 / seconds.max(0.001),
        summary.clean,
        summary.opened,
        summary.opened_for_writing,
        summary.committed,
        summary.disagreed,
        summary.failures.len()
    )
}
