//! Attributes that changed although no caller asked for it: a front end that caches attributes
//! drops them before the call returns.

use std::sync::Arc;

use super::Fs;
use crate::object::Inode;

/// At its end the front end is told what changed of an inode. It lives as long as the call, and
/// longer than each lock of it.
pub(super) struct Telling<'a> {
    fs: &'a Fs,
    inode: Arc<Inode>,
}

impl Fs {
    /// For each call on an inode that may change attributes which the call does not name. However
    /// it ends: a call that failed may have taken set-id bits away before.
    pub(super) fn telling(&self, inode: &Arc<Inode>) -> Telling<'_> {
        Telling {
            fs: self,
            inode: inode.clone(),
        }
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let (fs, inode) = (self.fs, &self.inode);
        inode.unasked.settle(|| {
            if let Some(caches) = fs.caches() {
                caches.attributes_changed(fs.numbering.node(inode));
            }
        });
    }
}
