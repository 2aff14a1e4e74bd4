//! `cargo xtask bench stream`: one large file, written and synced, then read cold, under each
//! compression and of data that compresses well, a little and not at all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args as ClapArgs;

use super::loads::generate;
use super::side::{self, Mounted, Side};
use super::table;

const NAME: &str = "stream";
/// Mount options; the first is none.
const OPTIONS: [&str; 5] = [
    "",
    "compress=lzo",
    "compress=zstd:1",
    "compress=zstd:3",
    "compress=zlib",
];
/// Cold reads of each file: they vary more than writes, and take less time.
const READS: usize = 5;
/// What the load generator writes.
const CONTENTS: [&str; 3] = ["text", "half", "noise"];

#[derive(ClapArgs)]
pub struct Args {
    /// MiB of the file
    #[arg(long, default_value_t = 1024)]
    pub mib: u64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// Only lines that contain this, such as `zstd:1` or `lzo text`
    #[arg(long, default_value = "")]
    pub only: String,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    pub dry_run: bool,
    /// Only our side
    #[arg(long)]
    pub ours: bool,
    /// Without a mount: the engine in one process, beside the codec alone
    #[arg(long)]
    pub in_process: bool,
}

/// Seconds of write and read, of all runs.
type Seconds = [Vec<f64>; 2];
type Results = BTreeMap<(usize, usize, Side), Seconds>;

pub fn main(args: &Args) -> Result<()> {
    if args.in_process {
        return super::codecs::main(args);
    }
    super::build()?;
    let sides: &[Side] = if args.ours || !side::kernel_can() {
        &[Side::Ours]
    } else {
        &[Side::Kernel, Side::Ours]
    };
    let mut results = Results::new();
    for (option, options) in OPTIONS.iter().enumerate() {
        for (content, name) in CONTENTS.iter().enumerate() {
            if !format!("{options} {name}").contains(&args.only) {
                continue;
            }
            for round in 0..args.runs {
                let mut order = sides.to_vec();
                if round % 2 == 1 {
                    order.reverse();
                }
                for (side, seconds) in run(args, &order, options, name)? {
                    eprintln!("{:>8} {options:<16} {name:<6} {seconds:.3?} s", side.name());
                    let all = results.entry((option, content, side)).or_default();
                    all.iter_mut().zip(seconds).for_each(|(all, new)| all.extend(new));
                }
            }
        }
    }
    let text = render(&results, args);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    table::store_named(NAME, &text)
}

/// Seconds of each side's write and of its reads, each after a new mount. All have written before
/// the first one reads, and then they read by turns: what slows the machine down for a second or
/// two meets all of them.
fn run(args: &Args, sides: &[Side], options: &str, content: &str) -> Result<Vec<(Side, Seconds)>> {
    let bytes = (args.mib << 20).to_string();
    let mut volumes = Vec::new();
    for side in sides {
        let mounted = Mounted::new(*side, &args.dir, options)?;
        let write = generate(&mounted.mountpoint(), &["stream-write", &bytes, "--content", content])?;
        volumes.push((mounted, [vec![write], Vec::new()]));
    }
    for _ in 0..READS {
        for (mounted, [_, reads]) in &mut volumes {
            mounted.remount()?;
            side::touch_memory(args.mib << 20);
            reads.push(generate(&mounted.mountpoint(), &["stream-read"])?);
        }
    }
    let ended = sides.iter().zip(volumes).map(|(side, (mounted, seconds))| {
        mounted.finish()?;
        Ok((*side, seconds))
    });
    ended.collect()
}

fn render(results: &Results, args: &Args) -> String {
    let (bytes, runs) = (args.mib << 20, args.runs);
    let mut text = format!(
        "{} MiB, medians of {runs} runs with {READS} reads each, GB/s. Ratio: how many times as fast as the kernel's btrfs.\n\n\
         | Option | data | write + fsync: kernel | Cowshed | ratio | cold read: kernel | Cowshed | ratio |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n",
        bytes >> 20
    );
    for (option, options) in OPTIONS.iter().enumerate() {
        for (content, name) in CONTENTS.iter().enumerate() {
            let of = |side| results.get(&(option, content, side));
            let Some(ours) = of(Side::Ours) else { continue };
            let _ = write!(
                text,
                "| {} | {name} |",
                if options.is_empty() { "none" } else { options }
            );
            for (what, ours) in ours.iter().enumerate() {
                let median = |seconds: &Vec<f64>| table::median(seconds);
                let rate = |s: Option<f64>| s.map_or("-".into(), |s| format!("{:.2}", bytes as f64 / s / 1e9));
                let (kernel, ours) = (of(Side::Kernel).and_then(|all| median(&all[what])), median(ours));
                let ratio = match (kernel, ours) {
                    (Some(kernel), Some(ours)) => format!("{:.2}", kernel / ours),
                    _ => "-".into(),
                };
                let _ = write!(text, " {} | {} | {ratio} |", rate(kernel), rate(ours));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_both_directions_and_their_ratios() {
        let mut results = Results::new();
        results.insert((1, 0, Side::Kernel), [vec![4.0], vec![1.0]]);
        results.insert((1, 0, Side::Ours), [vec![2.0, 1.0, 3.0], vec![2.0]]);
        let args = Args {
            mib: 1024,
            runs: 3,
            only: String::new(),
            dir: PathBuf::new(),
            dry_run: true,
            ours: false,
            in_process: false,
        };
        let text = render(&results, &args);
        let line = "| compress=lzo | text | 0.27 | 0.54 | 2.00 | 1.07 | 0.54 | 0.50 |";
        assert_eq!(text.lines().last(), Some(line), "{text}");
    }
}
