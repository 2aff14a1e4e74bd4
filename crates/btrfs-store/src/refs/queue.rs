//! The queue of reference changes of one transaction, by extent.

use std::collections::BTreeMap;

use btrfs_format::{LogicalAddr, TreeId};

use super::deltas::Deltas;
use super::name::RefName;
use super::{RefChange, RefKind};
use crate::error::{Error, Result};

/// All that is pending for one extent.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub(crate) len_bytes: u64,
    /// `Some` for a tree block.
    pub(crate) level: Option<u8>,
    /// The extent has no item yet: running the head makes it.
    pub(crate) is_new: bool,
    /// The tree block's references to its children become its own (shared) ones.
    pub(crate) set_full_backref: bool,
    /// The tree that lets go took the block for its own alone: no other reference may be left.
    pub(crate) is_last: bool,
    pub(super) deltas: Deltas,
}

impl Head {
    pub(crate) fn add(&mut self, name: RefName, delta: i64) {
        self.deltas.add(name, delta);
    }

    pub(crate) fn deltas(&self) -> &[(RefName, i64)] {
        self.deltas.as_slice()
    }

    pub(crate) fn delta_of(&self, name: RefName) -> i64 {
        let delta = self.deltas().iter().find(|(queued, _)| *queued == name);
        delta.map_or(0, |(_, delta)| *delta)
    }
    pub(crate) fn net(&self) -> i64 {
        self.deltas().iter().map(|(_, count)| count).sum()
    }

    /// Some references of the extent are dropped.
    pub(crate) fn drops_any(&self) -> bool {
        self.deltas().iter().any(|(_, count)| *count < 0)
    }

    /// Running it would change nothing.
    pub(crate) fn is_noop(&self) -> bool {
        !self.is_new && !self.set_full_backref && self.deltas().is_empty()
    }
}

/// Reference changes by extent address.
///
/// Addresses and lengths of what is dropped come from the disk: where they contradict each other or
/// what was allocated now, the queue remembers it, and the commit that takes the queue fails.
#[derive(Debug, Default)]
pub struct RefQueue {
    heads: BTreeMap<LogicalAddr, Head>,
    contradiction: Option<String>,
}

impl RefQueue {
    /// What is pending for one extent.
    pub(crate) fn pending(&self, addr: LogicalAddr) -> Vec<(RefName, i64)> {
        self.heads
            .get(&addr)
            .map_or_else(Vec::new, |head| head.deltas().to_vec())
    }

    fn contradict(&mut self, what: String) {
        self.contradiction.get_or_insert(what);
    }

    /// The head of an extent that all agree on; `None` where they do not.
    fn head(&mut self, addr: LogicalAddr, len_bytes: u64, level: Option<u8>) -> Option<&mut Head> {
        let head = self.heads.entry(addr).or_insert_with(|| Head {
            len_bytes,
            level,
            ..Head::default()
        });
        let known = (head.len_bytes, head.level);
        if known == (len_bytes, level) {
            return Some(head);
        }
        self.contradiction.get_or_insert_with(|| {
            format!(
                "extent {addr} is of {len_bytes} bytes, level {level:?}, and of {} bytes, level {:?}",
                known.0, known.1
            )
        });
        None
    }

    pub(crate) fn change(&mut self, change: &RefChange) {
        if change.kind == RefKind::New && self.heads.contains_key(&change.addr) {
            return self.contradict(format!("extent {} was free, and has references", change.addr));
        }
        let Some(head) = self.head(change.addr, change.len_bytes, None) else {
            return;
        };
        let r = change.data_ref;
        let name = RefName::ExtentData {
            root: r.root,
            ino: r.ino,
            offset: r.offset,
        };
        match change.kind {
            RefKind::New => {
                head.is_new = true;
                head.add(name, 1);
            }
            RefKind::Add => head.add(name, 1),
            RefKind::Drop => head.add(name, -1),
        }
    }

    /// A tree block that was just allocated.
    pub(crate) fn new_block(&mut self, addr: LogicalAddr, nodesize_bytes: u64, level: u8, root: TreeId) {
        let head = Head {
            len_bytes: nodesize_bytes,
            level: Some(level),
            is_new: true,
            set_full_backref: false,
            is_last: false,
            deltas: Deltas::of_one(RefName::TreeBlock { root }),
        };
        if self.heads.insert(addr, head).is_some() {
            self.contradict(format!("block {addr} was free, and has references"));
        }
    }

    /// Forgets a block that was allocated and never ran; false where it has run already (or is not
    /// new).
    pub(crate) fn cancel_new_block(&mut self, addr: LogicalAddr) -> bool {
        if self.heads.get(&addr).is_some_and(|head| head.is_new) {
            self.heads.remove(&addr);
            return true;
        }
        false
    }

    pub(crate) fn add(&mut self, addr: LogicalAddr, len_bytes: u64, level: Option<u8>, name: RefName, delta: i64) {
        if let Some(head) = self.head(addr, len_bytes, level) {
            head.add(name, delta);
        }
    }

    /// Drops the reference of the tree that has a block for its own: the block goes with it.
    pub(crate) fn drop_last(&mut self, addr: LogicalAddr, len_bytes: u64, level: u8, name: RefName) {
        if let Some(head) = self.head(addr, len_bytes, Some(level)) {
            head.add(name, -1);
            head.is_last = true;
        }
    }

    pub(crate) fn set_full_backref(&mut self, addr: LogicalAddr, len_bytes: u64, level: u8) {
        if let Some(head) = self.head(addr, len_bytes, Some(level)) {
            head.set_full_backref = true;
        }
    }

    pub(crate) fn get(&self, addr: LogicalAddr) -> Option<&Head> {
        self.heads.get(&addr)
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.contradiction.is_none()
    }
    /// Takes everything, in address order. Errors: what came contradicts itself.
    pub(crate) fn take(&mut self) -> Result<BTreeMap<LogicalAddr, Head>> {
        if let Some(what) = &self.contradiction {
            return Err(Error::CorruptTree {
                tree: TreeId::EXTENT,
                what: what.clone(),
            });
        }
        Ok(std::mem::take(&mut self.heads))
    }
}

#[cfg(test)]
mod tests {
    use btrfs_format::ObjectId;

    use super::*;
    use crate::refs::DataRef;

    fn change(addr: u64, len_bytes: u64, kind: RefKind) -> RefChange {
        RefChange {
            addr: LogicalAddr(addr),
            len_bytes,
            data_ref: DataRef {
                root: TreeId::FS,
                ino: ObjectId(257),
                offset: 0,
            },
            kind,
        }
    }

    #[test]
    fn what_contradicts_itself_is_not_committed() {
        let refused = |changes: &[RefChange], block: Option<u64>| {
            let mut queue = RefQueue::default();
            changes.iter().for_each(|c| queue.change(c));
            if let Some(addr) = block {
                queue.new_block(LogicalAddr(addr), 4096, 0, TreeId::FS);
            }
            assert!(!queue.is_empty(), "the commit must look at it");
            queue.take().err().map(|error| error.to_string()).unwrap_or_default()
        };
        let (short, long) = (change(8192, 4096, RefKind::Drop), change(8192, 8192, RefKind::Drop));
        assert!(refused(&[short, long], None).contains("of 8192 bytes"));
        let new = change(8192, 4096, RefKind::New);
        assert!(refused(&[short, new], None).contains("was free"));
        assert!(refused(&[short], Some(8192)).contains("was free"));
        assert_eq!(refused(&[new, short], Some(16384)), "");
    }
}
