//! `cowshed-bench-inprocess`: the engine without a kernel in between, through the contract that
//! front ends use.
//!
//! The volume lies in memory or in a file; nothing of its content is cached above the engine, as
//! with O_DIRECT.

mod beside;
mod changes;
mod codecs;
mod files;
mod names;
mod report;
mod rig;

use std::path::PathBuf;

use anyhow::Result;
use btrfs_image::size::{parse_size_bytes, pretty_bytes};
use clap::Parser;
use cowshed_benches::{allocations, peak_memory_bytes, reset_peak_memory};

use report::Report;
use rig::Rig;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

#[derive(Parser)]
#[command(about = "Measures the engine in one process")]
struct Args {
    /// Files in one directory
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Threads that create side by side
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Bytes of the file that is streamed
    #[arg(long, default_value = "1g", value_parser = size)]
    stream: u64,
    /// Only the measurements whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Put the volume in this file (it is made, and removed at the end) instead of in memory
    #[arg(long)]
    image: Option<PathBuf>,
    /// Memory that the engine may use
    #[arg(long, default_value = "2g", value_parser = size)]
    max_memory: u64,
    /// Forget each file when it is made, as a kernel short of memory does: what remains is the
    /// engine's own memory
    #[arg(long)]
    forget: bool,
    /// Check the volume with this command afterwards, which gets the image's path (with --image
    /// only)
    #[arg(long, requires = "image")]
    check: Option<String>,
    /// Instead of all that: streams under each compression, beside what the codec does alone
    #[arg(long)]
    codecs: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).map_err(|e| e.to_string())
}

fn main() -> Result<()> {
    allocations::share_one_heap();
    let args = Args::parse();
    let report = Report {
        json: args.json,
        only: args.only.clone(),
    };
    if args.codecs {
        return codecs::run(&args.only, args.stream, args.max_memory, args.json);
    }
    if report.wants(names::ALL) {
        reset_peak_memory();
        let rig = Rig::make(args.image.as_deref(), args.max_memory)?;
        names::run(&rig, &report, args.count, args.forget)?;
        end(rig, &args, "names")?;
    }
    if report.wants(changes::ALL) {
        reset_peak_memory();
        let rig = Rig::make(args.image.as_deref(), args.max_memory)?;
        changes::run(&rig, &report, args.count / 5)?;
        end(rig, &args, "changes")?;
    }
    if report.wants(beside::ALL) {
        for place in beside::Place::ALL {
            let rig = Rig::make(args.image.as_deref(), args.max_memory)?;
            beside::run(&rig, &report, place, (args.threads, args.count))?;
            end(rig, &args, "side by side")?;
        }
    }
    if report.wants(files::ALL) {
        reset_peak_memory();
        let rig = Rig::make(args.image.as_deref(), args.max_memory)?;
        files::run(&rig, &report, args.stream)?;
        end(rig, &args, "files")?;
    }
    Ok(())
}

fn end(rig: Rig, args: &Args, what: &str) -> Result<()> {
    let device_bytes = rig.device_memory_bytes();
    if !args.json {
        println!(
            "{what}: peak memory {}, of which the volume itself {}",
            pretty_bytes(peak_memory_bytes()),
            pretty_bytes(device_bytes)
        );
    }
    rig.finish(args.check.as_deref())
}
