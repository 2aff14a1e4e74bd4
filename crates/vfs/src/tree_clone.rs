//! Clones of whole trees, in steps that the caller drives.
//!
//! A step is short, so that the caller can show progress between two of them, and end the walk by
//! dropping it. What was cloned by then stays: each name that there is has its whole content.

use crate::{Context, Error, Result};

/// What a walk has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCloneProgress {
    /// Names made, that of the tree itself included.
    pub entries: u64,
    /// Content of the files among them, in bytes.
    pub bytes: u64,
}

/// An entry of the source that could not be cloned. The walk goes on without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCloned {
    /// From the tree's own directory, without a slash in front; empty for itself.
    pub path: Vec<u8>,
    /// Why.
    pub error: Error,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeCloneStep {
    /// There is more to do.
    More,
    /// There is more to do, but this entry is left out.
    Without(NotCloned),
    /// The tree is cloned.
    Done,
}

/// A walk that clones a tree: [`Volume::clone_tree`](crate::Volume::clone_tree).
pub trait TreeClone: Send {
    /// Clones some more names. The caller's permissions are asked for anew in each step. Errors end
    /// the walk: `NoSpace`, `ReadOnly`, `Io`, `NotFound` (the copy was deleted meanwhile).
    fn step(&mut self, ctx: &Context) -> Result<TreeCloneStep>;

    /// What was done so far.
    fn progress(&self) -> TreeCloneProgress;

    /// Where the walk is, or where it failed: from the tree's own directory.
    fn path(&self) -> Vec<u8>;
}
