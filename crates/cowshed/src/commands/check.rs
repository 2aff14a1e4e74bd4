//! `cowshed check`: the independent checkers. That of btrfs has the flags and the summary of
//! `btrfs check`.

mod args;
mod xfs;

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Result, bail};
use btrfs_check::{CheckOptions, FindingId, Phase, Report, Severity};
use cowshed::formats::Format;
use cowshed_device::Locking;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::{block_devices, devices};
pub use args::CheckArgs;
use args::FINDINGS_MAX;

/// How a volume is checked.
pub struct Judging {
    /// Although it is in use by a writer.
    pub force: bool,
    pub data_csums: bool,
    pub progress: bool,
}

/// What a check found.
pub struct Verdict {
    /// One line for each finding; notes, too.
    pub findings: String,
    pub sums: String,
    pub is_clean: bool,
}

/// Checks a volume.
pub fn judge(targets: &[PathBuf], how: &Judging) -> Result<Verdict> {
    let report = report(targets, how, FINDINGS_MAX)?;
    Ok(Verdict {
        findings: findings_text(FINDINGS_MAX, &report),
        sums: sums_text(how.data_csums, &report),
        is_clean: report.is_clean() && !found_no_volume(&report),
    })
}

fn report(targets: &[PathBuf], how: &Judging, findings_max: u64) -> Result<Report> {
    let locking = if how.force { Locking::Unlocked } else { Locking::Locked };
    let devices = devices::open_to_read(&block_devices::with_others(targets), locking)?;
    let bar = how.progress.then(Bar::default);
    let options = CheckOptions {
        data_csums: how.data_csums,
        kept_per_id_max: findings_max,
        progress: bar.as_ref().map(|bar| bar as &dyn btrfs_check::Progress),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let report = btrfs_check::check(&devices, &options);
    if let Some(bar) = &bar {
        bar.finish();
    }
    Ok(report)
}

pub fn run(args: &CheckArgs) -> Result<u8> {
    if args
        .targets
        .iter()
        .any(|target| devices::format_at(target) == Format::Xfs)
    {
        return xfs::run(args);
    }
    if args.no_replay || args.logdev.is_some() {
        bail!("--no-replay and --logdev are for volumes of XFS");
    }
    let how = Judging {
        force: args.force,
        data_csums: args.check_data_csum,
        progress: args.progress || (!args.quiet && std::io::stderr().is_terminal()),
    };
    let report = report(&args.targets, &how, args.max_findings)?;
    let text = match (args.json, args.quiet) {
        (true, _) => format!("{:#}\n", report_json(args, &report)),
        (_, true) => findings_text(args.max_findings, &report),
        _ => findings_text(args.max_findings, &report) + &sums_text(args.check_data_csum, &report),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader of the output may be gone: the exit code is that of the check.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(match report.is_clean() {
        _ if found_no_volume(&report) => 2,
        true => 0,
        false => 1,
    })
}

/// No superblock, and so nothing that could be judged.
fn found_no_volume(report: &Report) -> bool {
    report.has(FindingId::SuperUnreadable) && report.statistics.tree_blocks == 0
}

fn findings_text(findings_max: u64, report: &Report) -> String {
    let mut out = report.to_string();
    for (id, count) in report.counts.iter().filter(|(_, count)| **count > findings_max) {
        let more = count - findings_max;
        out += &format!("{}: {id}: {more} more of them\n", id.severity());
    }
    out
}

fn sums_text(data_csums: bool, report: &Report) -> String {
    if found_no_volume(report) {
        return "no btrfs volume that could be checked\n".into();
    }
    let stats = &report.statistics;
    let verdict = match report.worst() {
        Some(Severity::Error) => "error(s) found".to_owned(),
        Some(Severity::Warning) => "warning(s) found".to_owned(),
        Some(Severity::Note) | None => "no error found".to_owned(),
    };
    let mut out = format!("found {} bytes used, {verdict}\n", stats.bytes_used);
    out += &format!("total csum bytes: {}\n", stats.csum_bytes);
    out += &format!("total tree bytes: {}\n", stats.tree_bytes);
    out += &format!("total fs tree bytes: {}\n", stats.fs_tree_bytes);
    out += &format!("total extent tree bytes: {}\n", stats.extent_tree_bytes);
    out += &format!("btree space waste bytes: {}\n", stats.tree_waste_bytes);
    out += &format!("file data blocks allocated: {}\n", stats.data_allocated_bytes);
    out += &format!(" referenced {}\n", stats.data_referenced_bytes);
    if data_csums {
        out += &format!("data bytes verified: {}\n", stats.data_verified_bytes);
    }
    out
}

fn report_json(args: &CheckArgs, report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            let site = &finding.site;
            json!({
                "id": finding.id.as_str(),
                "severity": finding.severity.to_string(),
                "message": finding.message,
                "tree": site.tree.map(|t| t.get()),
                "block": site.block.map(|b| b.get()),
                "key": site.key.map(|k| json!({
                    "objectid": k.objectid.get(), "type": k.ty.to_string(), "offset": k.offset,
                })),
                "inode": site.inode,
                "path": site.path,
                "device": site.device.map(|(devid, offset)| json!({ "devid": devid, "offset": offset })),
            })
        })
        .collect();
    let counts: serde_json::Map<String, Value> = report
        .counts
        .iter()
        .map(|(id, count)| (id.as_str().to_owned(), json!(count)))
        .collect();
    let stats = &report.statistics;
    json!({
        "targets": args.targets.iter().map(|t| t.display().to_string()).collect::<Vec<_>>(),
        "clean": report.is_clean(),
        "counts": counts,
        "findings": findings,
        "statistics": {
            "bytes_used": stats.bytes_used,
            "csum_bytes": stats.csum_bytes,
            "tree_bytes": stats.tree_bytes,
            "fs_tree_bytes": stats.fs_tree_bytes,
            "extent_tree_bytes": stats.extent_tree_bytes,
            "tree_waste_bytes": stats.tree_waste_bytes,
            "data_allocated_bytes": stats.data_allocated_bytes,
            "data_referenced_bytes": stats.data_referenced_bytes,
            "extents": stats.extents,
            "tree_blocks": stats.tree_blocks,
            "subvolumes": stats.subvolumes,
            "inodes": stats.inodes,
            "data_verified_bytes": stats.data_verified_bytes,
        },
    })
}

/// One bar for each phase, on standard error.
#[derive(Default)]
struct Bar(Mutex<Option<(Phase, ProgressBar)>>);

impl Bar {
    fn start(phase: Phase, total_bytes: u64) -> ProgressBar {
        // The templates are ours and right; were one not, the default would do.
        let style =
            |template: &str| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        match phase {
            Phase::Trees => ProgressBar::new_spinner().with_style(style("{spinner} trees {bytes} {elapsed}")),
            Phase::Data => {
                let template = "{spinner} data {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
                ProgressBar::new(total_bytes).with_style(style(template))
            }
        }
    }

    fn finish(&self) {
        if let Ok(mut bar) = self.0.lock()
            && let Some((_, bar)) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

impl btrfs_check::Progress for Bar {
    fn update(&self, phase: Phase, done_bytes: u64, total_bytes: u64) {
        let Ok(mut slot) = self.0.lock() else { return };
        if slot.as_ref().is_none_or(|(shown, _)| *shown != phase) {
            if let Some((_, old)) = slot.take() {
                old.finish_and_clear();
            }
            *slot = Some((phase, Self::start(phase, total_bytes)));
        }
        if let Some((_, bar)) = slot.as_ref() {
            bar.set_position(done_bytes);
        }
    }
}
