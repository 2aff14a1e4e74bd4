//! The arguments of `cowshed check`.

use std::path::PathBuf;

use clap::Args;

/// Findings of each kind that are printed where nothing else is asked for.
pub(super) const FINDINGS_MAX: u64 = 100;

#[derive(Args, Debug)]
#[command(after_help = "\
Exit code: 0 nothing is wrong (notes may be printed), 1 something is, 2 the check could not be made.")]
pub struct CheckArgs {
    /// Image files or block devices of one volume
    #[arg(required = true, value_name = "TARGET")]
    pub(super) targets: Vec<PathBuf>,
    /// Read all data, every copy, and compare it with its checksums (btrfs)
    #[arg(long)]
    pub(super) check_data_csum: bool,
    /// Check the volume as it lies, without the changes that wait in its log (XFS)
    #[arg(long)]
    pub(super) no_replay: bool,
    /// The device of an external log (XFS)
    #[arg(long, value_name = "DEVICE")]
    pub(super) logdev: Option<PathBuf>,
    /// Check although the volume is in use by a writer: what changes meanwhile looks like a fault
    #[arg(long)]
    pub(super) force: bool,
    /// Change nothing, which is what is always done
    #[arg(long, hide = true)]
    pub(super) readonly: bool,
    /// Show progress; on a terminal that is the default
    #[arg(short, long)]
    pub(super) progress: bool,
    /// Print findings alone: no progress, no sums, nothing if all is well
    #[arg(short, long, conflicts_with_all = ["progress", "json"])]
    pub(super) quiet: bool,
    /// Print at most so many findings of each kind
    #[arg(long, value_name = "N", default_value_t = FINDINGS_MAX)]
    pub(super) max_findings: u64,
    /// Print findings and sums as JSON
    #[arg(long)]
    pub(super) json: bool,
}
