//! Which threads a run has.

/// The threads that work on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread: the run follows from its seed.
    One,
    /// One thread works, another one commits all the time.
    Committer,
    /// One thread writes and renames, another one syncs all the time: write-back, too, runs beside
    /// the operations.
    Syncer,
    /// Several threads, each in a directory of its own.
    Several,
    /// Several threads in the same directories and files: what each syncs must hold, though the
    /// others go on meanwhile.
    Shared,
    /// Several threads in the same directories whose operations run beside each other, too, and
    /// beside syncs: see [`crate::rounds`].
    Rounds,
    /// As `Several`, on a small volume with hardly any space left: what they do fails for want of
    /// it now and then.
    Full,
}
