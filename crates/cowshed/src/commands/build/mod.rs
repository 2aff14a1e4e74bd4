//! `cowshed build`: an image of what directories and archives hold.

mod args;
mod output;
mod spec;
mod values;

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use btrfs_image::size::pretty_bytes;
use btrfs_image::{Features, MkfsOptions, csum_type_from_name};
use cowshed::image::{Builder, Report};

pub use self::args::BuildArgs;
use self::output::Output;
pub(super) use self::values::{Compress, InodeFlags, compress, inode_flags, subvolume};
use self::values::{Origin, Snapshot};
use super::progress;

/// Says how files are stored.
pub(super) fn apply_storage(builder: &mut Builder, compress: &[Compress], flags: &[InodeFlags]) -> Result<()> {
    for Compress { glob, how } in compress {
        match (glob, how) {
            (Some(glob), how) => drop(builder.compress_matching(glob, *how)?),
            (None, Some(how)) => drop(builder.compress(*how)),
            (None, None) => {}
        }
    }
    for flags in flags {
        if flags.nodatacow {
            builder.nodatacow(&flags.path);
        }
        if flags.nodatasum {
            builder.nodatasum(&flags.path);
        }
    }
    Ok(())
}

/// `SOURCE_DATE_EPOCH`, in seconds.
fn epoch_sec() -> Result<Option<u32>> {
    let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let sec = epoch.parse().with_context(|| format!("SOURCE_DATE_EPOCH={epoch:?}"))?;
    Ok(Some(sec))
}

/// `SOURCE_DATE_EPOCH`.
pub(super) fn epoch() -> Result<Option<SystemTime>> {
    let sec = epoch_sec()?;
    Ok(sec.map(|sec| SystemTime::UNIX_EPOCH + Duration::from_secs(sec.into())))
}

/// What uuids follow from where they are to be the same each time.
pub(super) fn fixed_seed() -> Option<String> {
    std::env::var("DETERMINISTIC_SEED").ok()
}

/// Reads `SOURCE_DATE_EPOCH` and `DETERMINISTIC_SEED`.
pub(super) fn apply_environment(builder: &mut Builder) -> Result<()> {
    if let Some(sec) = epoch_sec()? {
        builder.clamp_times(sec.into());
    }
    if let Some(seed) = fixed_seed() {
        builder.seed(seed);
    }
    Ok(())
}

/// The exit code after a failure, as that of mkfs.btrfs.
pub const FAILED: u8 = 1;

/// A failure is printed here: its exit code is not that of other commands.
pub fn run(args: &BuildArgs) -> u8 {
    match try_run(args) {
        Ok(()) => 0,
        Err(error) => {
            crate::people::warn(format_args!("cowshed: {error:#}"));
            FAILED
        }
    }
}

fn try_run(args: &BuildArgs) -> Result<()> {
    match &args.spec {
        // Behind the names of program and command.
        Some(path) => make(&spec::read(path, std::env::args_os().skip(2))?),
        None => make(args),
    }
}

fn make(args: &BuildArgs) -> Result<()> {
    crate::unfinished::remove_when_interrupted();
    if args.from.is_empty() {
        bail!("--from SOURCE says what goes into the image");
    }
    let output = Output::of(args)?;
    let mut builder = builder(args, &output)?;
    if !args.quiet && !args.json {
        progress::show(&mut builder);
    }
    let report = match args.dry_run {
        true => builder.plan()?,
        false => output.write(&mut builder, args.size)?,
    };
    if args.verify && !args.dry_run {
        output.verify(args)?;
    }
    let said = match (args.json, args.quiet) {
        (true, _) => format!("{:#}\n", json(&report)),
        (false, false) => text(&output, &report),
        (false, true) => String::new(),
    };
    match output {
        // There the image goes.
        Output::Stdout => crate::people::warn_part(&said),
        _ => crate::people::say_part(&said),
    }
    Ok(())
}

fn builder(args: &BuildArgs, output: &Output<'_>) -> Result<Builder> {
    let mut builder = Builder::new();
    apply_environment(&mut builder)?;
    builder.label(args.label.as_str());
    if let Some(uuid) = args.uuid {
        builder.uuid(uuid);
    }
    let mut features = Features::default();
    for list in &args.features {
        features.apply(list)?;
    }
    let nodesize_bytes = args.nodesize.map(u32::try_from).transpose().context("--nodesize")?;
    builder.volume(MkfsOptions {
        nodesize_bytes,
        metadata_profile: args.metadata,
        data_profile: args.data,
        csum_type: csum_type_from_name(&args.csum)?,
        features,
        force: args.force || !output.may_hold(),
        ..MkfsOptions::new([0; 16])
    });
    for Origin { into, path } in &args.from {
        builder.into_dir(into);
        match path.as_os_str() == "-" {
            true => builder.from_stdin(),
            false => builder.from_path(path),
        };
    }
    if let Some(platform) = &args.platform {
        builder.platform(platform.clone());
    }
    // On the disk that the image goes to: there is room for it.
    if let Some(dir) = output.dir() {
        builder.spool_dir(dir);
    }
    for (kind, path) in &args.subvol {
        builder.subvolume_of_kind(path, *kind);
    }
    for Snapshot { kind, of, at } in &args.snapshot {
        builder.snapshot(of, at, *kind);
    }
    if let Some(dir) = &args.layers {
        builder.layers(dir);
    }
    apply_storage(&mut builder, &args.compress, &args.inode_flags)?;
    for (glob, letters) in &args.chattr {
        builder.chattr(glob, letters)?;
    }
    if args.dedupe {
        builder.dedupe();
    }
    if args.reflink {
        builder.reflink();
    }
    for path in &args.file_contexts {
        let shown = || path.display().to_string();
        let rules = std::fs::read_to_string(path).with_context(shown)?;
        builder.file_contexts(&rules).with_context(shown)?;
    }
    if let Some(map) = &args.map_users {
        builder.map_users(map.clone());
    }
    let root = args.all_root.then_some(0);
    if let Some(uid) = args.force_uid.or(root) {
        builder.force_uid(uid);
    }
    if let Some(gid) = args.force_gid.or(root) {
        builder.force_gid(gid);
    }
    builder.uid_offset(args.uid_offset).gid_offset(args.gid_offset);
    for (path, owner) in &args.owner {
        builder.owner(path, *owner);
    }
    if let Some(owner) = args.root_owner {
        builder.owner("", owner);
    }
    for (path, mode) in &args.mode {
        builder.mode(path, *mode);
    }
    for glob in &args.exclude {
        builder.exclude(glob)?;
    }
    for regex in &args.exclude_regex {
        builder.exclude_regex(regex)?;
    }
    for glob in &args.include {
        builder.include(glob)?;
    }
    for regex in &args.include_regex {
        builder.include_regex(regex)?;
    }
    if let Some(size) = args.size {
        builder.size(size);
    }
    builder.slack(args.slack);
    if let Some(offset) = args.offset {
        builder.offset(offset);
    }
    if let Some(kind) = args.partition {
        builder.partition(kind);
    }
    if let Some(jobs) = args.jobs {
        builder.jobs(jobs.into());
    }
    Ok(builder)
}

fn text(output: &Output<'_>, report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<20}{value}");
    };
    line("Image:", output.to_string());
    if !report.label.is_empty() {
        line("Label:", report.label.clone());
    }
    line("UUID:", report.uuid.to_string());
    line(
        "Size:",
        format!("{} ({} bytes)", pretty_bytes(report.bytes), report.bytes),
    );
    line("Inodes:", report.inodes.to_string());
    line("Contents:", pretty_bytes(report.content_bytes));
    line("Data:", pretty_bytes(report.data_bytes));
    line("Metadata:", pretty_bytes(report.metadata_bytes));
    text
}

pub(super) fn json(report: &Report) -> serde_json::Value {
    serde_json::json!({
        "bytes": report.bytes,
        "needed_bytes": report.needed_bytes,
        "content_bytes": report.content_bytes,
        "data_bytes": report.data_bytes,
        "metadata_bytes": report.metadata_bytes,
        "inodes": report.inodes,
        "uuid": report.uuid.to_string(),
        "label": report.label,
    })
}
