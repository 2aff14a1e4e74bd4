//! Mechanisms that `cargo xtask bench fsync` and `bench remap` turn off, one at a time, to see what each is worth.
//!
//! Only a build with the feature `bench-switches` can do so: it reads the names from `COWSHED_OFF`, and adds what each mount
//! did in its trees to the file that `COWSHED_COUNTERS` names. In any other build everything is on, at compile time.

/// What can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// Log: new inodes of a directory are copied from one walk over the overlay, not one by one.
    Bulk,
    /// Log: inodes known to have no extended attributes are not searched for them.
    Xattr,
    /// Log: a round of the queue writes one log for all who wait.
    Share,
    /// Log: a commit is made where it is cheaper than a log.
    Choice,
    /// Data: items of extents are changed in place, neighbours are joined, references that cancel are not queued. Off: items are
    /// deleted and inserted, and each reference is queued as it comes and goes.
    Remap,
}

#[cfg(not(feature = "bench-switches"))]
pub(crate) const fn is_on(_: Mechanism) -> bool {
    true
}

#[cfg(feature = "bench-switches")]
pub(crate) fn is_on(mechanism: Mechanism) -> bool {
    static OFF: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let off = OFF.get_or_init(|| std::env::var("COWSHED_OFF").unwrap_or_default());
    let name = match mechanism {
        Mechanism::Bulk => "bulk",
        Mechanism::Xattr => "xattr",
        Mechanism::Share => "share",
        Mechanism::Choice => "choice",
        Mechanism::Remap => "remap",
    };
    !off.split(',').any(|word| word == name)
}

/// Adds a line of counters: edits of items and changes of references before commits, items merged and bytes of tree blocks
/// written by commits.
#[cfg(feature = "bench-switches")]
pub(crate) fn count(engine: &crate::engine::Engine) {
    use std::io::Write as _;
    let Some(path) = std::env::var_os("COWSHED_COUNTERS") else {
        return;
    };
    let ((items, refs), commits) = (engine.store.txn().applied(), engine.commit_stats());
    let bytes = commits.blocks_written * engine.store.nodes().nodesize_bytes() as u64;
    let file = std::fs::File::options().append(true).create(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{items} {refs} {} {bytes}", commits.items_merged));
    if let Err(error) = written {
        tracing::error!(%error, "counters");
    }
}
