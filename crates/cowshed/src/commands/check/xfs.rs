//! `cowshed check` of a volume of XFS.

use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail};
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};
use cowshed_xfs::{OpenOptions, Volume};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use xfs_check::{CheckOptions, Phase, Report, Severity};

use super::args::CheckArgs;
use crate::devices;

pub fn run(args: &CheckArgs) -> Result<u8> {
    if args.targets.len() > 1 {
        bail!("a volume of XFS lies on one device; that of an external log goes with --logdev");
    }
    if args.check_data_csum {
        bail!("--check-data-csum: a volume of XFS has no checksums of data");
    }
    let locking = if args.force { Locking::Unlocked } else { Locking::Locked };
    let opened = devices::open_to_read(&args.targets, locking)?;
    let device = opened.first().context("a device")?;
    let log_device = match &args.logdev {
        Some(path) => {
            let log = FileDevice::open_with(path, OpenMode::ReadOnly, locking)
                .with_context(|| format!("--logdev {}", path.display()))?;
            Some(Arc::new(log) as Arc<dyn BlockDevice>)
        }
        None => None,
    };
    let replay = || replayed(device, log_device.clone());
    let shows_progress = args.progress || (!args.quiet && std::io::stderr().is_terminal());
    let bar = shows_progress.then(Bar::default);
    let options = CheckOptions {
        kept_per_id_max: args.max_findings,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        progress: bar.as_ref().map(|bar| bar as &dyn xfs_check::Progress),
        log_device: log_device.clone(),
        replay: (!args.no_replay).then_some(&replay),
        ..CheckOptions::default()
    };
    let report = xfs_check::check(device.clone(), &options);
    if let Some(bar) = &bar {
        bar.finish();
    }
    let text = match (args.json, args.quiet) {
        (true, _) => format!("{:#}\n", report_json(args, &report)),
        (_, true) => findings_text(args.max_findings, &report),
        _ => findings_text(args.max_findings, &report) + &sums_text(&report),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(match report.is_clean() {
        _ if !report.statistics.was_checked => 2,
        true => 0,
        false => 1,
    })
}

/// The state after the log: the engine replays it in memory.
fn replayed(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<Arc<dyn BlockDevice>>,
) -> Result<Arc<dyn BlockDevice>, String> {
    let options = OpenOptions {
        rescue: true,
        log_device,
        ..OpenOptions::default()
    };
    let volume = Volume::open(device.clone(), &options).map_err(|error| error.to_string())?;
    Ok(volume.recovered_device())
}

fn findings_text(findings_max: u64, report: &Report) -> String {
    let mut out = report.to_string();
    for (id, count) in report.counts.iter().filter(|(_, count)| **count > findings_max) {
        let more = count - findings_max;
        out += &format!("{}: {id}: {more} more of them\n", id.severity());
    }
    out
}

fn sums_text(report: &Report) -> String {
    let stats = &report.statistics;
    if !stats.was_checked {
        return "no XFS volume that could be checked\n".into();
    }
    let verdict = match report.worst() {
        Some(Severity::Error) => "error(s) found",
        Some(Severity::Warning) => "warning(s) found",
        Some(Severity::Note) | None => "no error found",
    };
    let used = stats.total_bytes.saturating_sub(stats.free_bytes);
    let mut out = format!("found {used} bytes used, {verdict}\n");
    for (name, count) in [
        ("allocation groups", stats.groups),
        ("inodes", stats.inodes),
        ("directories", stats.directories),
        ("entries", stats.entries),
        ("extents", stats.extents),
        ("tree blocks", stats.tree_blocks),
    ] {
        out += &format!("total {name}: {count}\n");
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
                "group": site.group.map(|group| group.get()),
                "block": site.block.map(|block| block.get()),
                "inode": site.inode.map(|inode| inode.get()),
                "daddr": site.daddr,
                "slot": site.slot,
            })
        })
        .collect();
    let counts = report.counts.iter();
    let counts: serde_json::Map<String, Value> = counts
        .map(|(id, count)| (id.as_str().to_owned(), json!(count)))
        .collect();
    let stats = &report.statistics;
    json!({
        "targets": args.targets.iter().map(|t| t.display().to_string()).collect::<Vec<_>>(),
        "clean": report.is_clean(),
        "counts": counts,
        "findings": findings,
        "statistics": {
            "groups": stats.groups,
            "inodes": stats.inodes,
            "directories": stats.directories,
            "entries": stats.entries,
            "extents": stats.extents,
            "tree_blocks": stats.tree_blocks,
            "free_bytes": stats.free_bytes,
            "total_bytes": stats.total_bytes,
        },
    })
}

/// One bar for each phase, on standard error.
#[derive(Default)]
struct Bar(Mutex<Option<(Phase, ProgressBar)>>);

impl Bar {
    fn start(phase: Phase, total: u64) -> ProgressBar {
        let name = match phase {
            Phase::Groups => "groups",
            Phase::Inodes => "chunks of inodes",
            Phase::Claims => "owners",
        };
        // The template is ours and right; were it not, the default would do.
        let style = ProgressStyle::with_template(&format!("{{spinner}} {name} {{wide_bar}} {{pos}}/{{len}} {{eta}}"));
        ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    fn finish(&self) {
        if let Ok(mut bar) = self.0.lock()
            && let Some((_, bar)) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

impl xfs_check::Progress for Bar {
    fn update(&self, phase: Phase, done: u64, total: u64) {
        let Ok(mut slot) = self.0.lock() else { return };
        if slot.as_ref().is_none_or(|(shown, _)| *shown != phase) {
            if let Some((_, old)) = slot.take() {
                old.finish_and_clear();
            }
            *slot = Some((phase, Self::start(phase, total)));
        }
        if let Some((_, bar)) = slot.as_ref() {
            bar.set_position(done);
        }
    }
}
