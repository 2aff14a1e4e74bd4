//! Mechanisms of the log that `cargo xtask bench fsync` turns off, one at a time, to see what each is worth.
//!
//! Only a build with the feature `bench-switches` can do so: it reads the names from `COWSHED_LOG_OFF`. In any other build
//! everything is on, at compile time.

/// What can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    /// New inodes of a directory are copied from one walk over the overlay, not one by one.
    Bulk,
    /// Inodes known to have no extended attributes are not searched for them.
    Xattr,
    /// A round of the queue writes one log for all who wait.
    Share,
    /// A commit is made where it is cheaper than a log.
    Choice,
}

#[cfg(not(feature = "bench-switches"))]
pub(super) const fn is_on(_: Mechanism) -> bool {
    true
}

#[cfg(feature = "bench-switches")]
pub(super) fn is_on(mechanism: Mechanism) -> bool {
    static OFF: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let off = OFF.get_or_init(|| std::env::var("COWSHED_LOG_OFF").unwrap_or_default());
    let name = match mechanism {
        Mechanism::Bulk => "bulk",
        Mechanism::Xattr => "xattr",
        Mechanism::Share => "share",
        Mechanism::Choice => "choice",
    };
    !off.split(',').any(|word| word == name)
}
