//! The table.

use std::fmt::Write as _;

use super::super::table::{median, ratio};
use super::judges::{CHECK, OPEN, REPLAY};
use super::lines::{GROUPS, Unit};
use super::view::{By, Format};
use super::{Args, Results};

pub fn table(args: &Args, results: &Results) -> String {
    let mut text = format!(
        "{} files of 4 KiB in one directory, a file of {} MiB, one of {} extents, and the tree {}. Medians of {} \
         runs. Ratio: how many times as fast as the kernel's XFS. The last two columns: how many times as fast as \
         Cowshed's mount of a volume of btrfs with the same contents, on the same transport.\n\n\
         | Line | kernel | /dev/fuse | ratio | io_uring | ratio | to our btrfs, /dev/fuse | to our btrfs, io_uring |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
        args.files(),
        args.stream_mib(),
        args.extents(),
        args.tree.display(),
        args.runs
    );
    let lines = GROUPS.iter().flat_map(|group| group.iter());
    let lines = lines.map(|line| (line.name, line.unit));
    for (name, unit) in lines.chain([OPEN, REPLAY, CHECK].map(|name| (name, Unit::Millis))) {
        let of = |format, by| results.get(&(name, format, by)).and_then(|seconds| median(seconds));
        if of(Format::Xfs, By::Dev).is_none() {
            continue;
        }
        let times = |by| ratio(of(Format::Xfs, By::Kernel), of(Format::Xfs, by));
        let to_btrfs = |by| ratio(of(Format::Btrfs, by), of(Format::Xfs, by));
        let cell = |by| of(Format::Xfs, by).map_or("-".into(), |seconds| show(unit, seconds, args));
        let title = match name {
            CHECK => "`cowshed check` beside `xfs_repair -n`",
            name => name,
        };
        let _ = writeln!(
            text,
            "| {title} | {} | {} | {} | {} | {} | {} | {} |",
            cell(By::Kernel),
            cell(By::Dev),
            times(By::Dev),
            cell(By::Uring),
            times(By::Uring),
            to_btrfs(By::Dev),
            to_btrfs(By::Uring)
        );
    }
    text
}

fn show(unit: Unit, seconds: f64, args: &Args) -> String {
    let per_s = unit.amount(args) as f64 / seconds;
    match unit {
        Unit::Files | Unit::Reads => format!("{:.0}k/s", per_s / 1e3),
        Unit::Bytes => format!("{:.2} GB/s", per_s / 1e9),
        Unit::Millis => format!("{:.1} ms", seconds * 1e3),
    }
}
