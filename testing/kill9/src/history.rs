//! What was done, and what of it was acknowledged as durable.

use std::collections::HashMap;

use cowshed_model::{Id, Model, Op};
use cowshed_vfs::Timestamp;

/// Times are not compared: any will do.
pub const NOW: Timestamp = Timestamp::new(0, 0);

/// Operations since a point at which everything was durable.
pub struct History {
    pub base: Model,
    pub ops: Vec<Op>,
    /// After so many operations the names and attributes were acknowledged.
    pub floor: usize,
    /// After so many operations a file's content was.
    pub content_floor: HashMap<Id, usize>,
    /// The last operation was not answered: it may have happened or not.
    pub is_last_open: bool,
    /// All operations of the round.
    pub trace: Vec<Op>,
}

impl History {
    pub fn new(base: Model) -> History {
        History {
            base,
            ops: Vec::new(),
            floor: 0,
            content_floor: HashMap::new(),
            is_last_open: false,
            trace: Vec::new(),
        }
    }

    /// Everything up to now is durable.
    pub fn synced(&mut self, model: &Model) {
        let trace = std::mem::take(&mut self.trace);
        *self = History {
            trace,
            ..History::new(model.clone())
        };
    }

    /// The content of a file is durable, and all names and attributes.
    pub fn fsynced(&mut self, id: Id) {
        self.floor = self.ops.len();
        self.content_floor.insert(id, self.ops.len());
    }
}
