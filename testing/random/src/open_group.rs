//! An open atomic group of a subject.

use cowshed_vfs::{Group, Handle, NodeId};

/// A group that is open.
#[derive(Default)]
pub(crate) struct OpenGroup {
    /// What the library has staged.
    pub group: Option<Box<dyn Group>>,
    /// Held open until the end; of a handle's group it is the handle.
    pub files: Vec<(NodeId, Handle)>,
}
