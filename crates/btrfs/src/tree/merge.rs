//! The bulk merge of a commit.

use btrfs_format::Key;

use crate::overlay::Edit;

/// Sorted edits.
pub type Edits = Vec<(Key, Edit)>;
/// What a merge did.
#[derive(Debug)]
pub struct MergeOutcome {}
/// Merges.
#[derive(Debug)]
pub struct Merger {}
