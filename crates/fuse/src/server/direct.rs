//! Direct writes. What the kernel may have cached of the content before is dropped before the write
//! is acknowledged: [`crate::pages`] says what that is, the thread behind [`DropPages`] drops it
//! and sends the reply. No worker waits: dropping a page waits for the reads of it, which may need
//! this very worker.
//!
//! A reply that is withheld occupies one of the requests that the kernel lets be under way in the
//! background. Readahead is such a request, too. If all of them were writes that wait for a page to
//! be dropped, and the page for a read that the kernel has not sent yet, nothing would go on. So
//! their number is limited: a write beyond the limit is acknowledged at once, and its pages are
//! dropped as soon as it is their turn.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cowshed_vfs::{Caches, Error, NodeId, Result};

use super::late::Owed;
use super::{After, Post, Reply, Server};
use crate::pages::{Pages, Stale};
use crate::proto::Request;
use crate::proto::flags::WireWriteFlags;
use crate::proto::wire::{WriteIn, WriteOut};

/// The means to drop pages from the kernel's cache.
pub trait DropPages: Caches {
    /// The content of a node in a range is dropped, then `then` is called. Does not wait, however
    /// long it takes.
    fn drop_then(&self, node: NodeId, range: Range<u64>, then: Box<dyn FnOnce() + Send>);
    /// Listings of directories are dropped some time. Does not wait.
    fn drop_listings(&self, dirs: Vec<NodeId>);
}

/// What is known of the page cache, and the means to drop pages from it.
pub(super) struct DirectWrites {
    pub pages: Pages,
    caches: OnceLock<Arc<dyn DropPages>>,
    withheld: AtomicUsize,
    withheld_max: usize,
}

/// Is this a write past the page cache? Linux names a lock owner in those alone. Others hold locks
/// on pages until they are answered: to drop these pages first would wait for ever.
pub(super) fn is_direct(args: &WriteIn) -> bool {
    let flags = WireWriteFlags::from_bits_retain(args.write_flags);
    flags.contains(WireWriteFlags::LOCKOWNER) && !flags.contains(WireWriteFlags::CACHE)
}

/// The bytes of a request.
pub(super) fn range_of(offset: u64, len_bytes: u32) -> Range<u64> {
    offset..offset.saturating_add(len_bytes.into())
}

impl DirectWrites {
    /// `background_max`: as many requests in the background the kernel lets be under way.
    pub fn new(background_max: u16) -> DirectWrites {
        DirectWrites {
            pages: Pages::default(),
            caches: OnceLock::new(),
            withheld: AtomicUsize::new(0),
            // The rest is left to reads.
            withheld_max: usize::from(background_max) / 16 * 15,
        }
    }

    /// One more reply is withheld until what this returns is dropped. None: they are too many.
    fn withhold(self: &Arc<Self>) -> Option<Withheld> {
        let withheld = Withheld(self.clone());
        (self.withheld.fetch_add(1, Ordering::AcqRel) < self.withheld_max).then_some(withheld)
    }
}

struct Withheld(Arc<DirectWrites>);

impl Drop for Withheld {
    fn drop(&mut self) {
        self.0.withheld.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Server {
    /// From here on pages can be dropped. Does nothing the second time.
    pub fn set_caches(&self, caches: Arc<dyn DropPages>) {
        let _ = self.direct.caches.set(caches);
    }

    /// What [`Server::set_caches`] was given.
    pub fn caches(&self) -> Option<&Arc<dyn DropPages>> {
        self.direct.caches.get()
    }

    pub(super) fn write_direct(
        &self,
        request: &Request<'_>,
        (args, data): (&WriteIn, &[u8]),
        post: &dyn Post,
        reply: &mut Reply<'_>,
    ) -> Result<After> {
        if self.agreed().is_none() {
            return Err(Error::Io);
        }
        let node = NodeId(request.header.nodeid);
        self.direct.pages.begin_write(node);
        let outcome = self.write(&self.context(request, 0), node, args, data);
        let outcome = outcome.map(|bytes| WriteOut {
            size: bytes as u32,
            padding: 0,
        });
        let stale = self.direct.pages.applied(node, range_of(args.offset, args.size));
        match (stale, self.caches()) {
            (Stale::Nothing, _) | (_, None) => {}
            (Stale::Attributes(told), Some(caches)) => {
                caches.attributes_changed(node);
                self.direct.pages.attributes_forgotten(node, told);
            }
            (Stale::Content(range, told), Some(caches)) => {
                let withheld = post.may_withhold().then(|| self.direct.withhold()).flatten();
                let is_late = withheld.is_some();
                let owed = withheld.map(|withheld| (withheld, Owed::new(request, post)));
                let direct = self.direct.clone();
                let dropped = range.clone();
                let then = move || {
                    direct.pages.dropped(node, &dropped, told);
                    if let Some((_withheld, owed)) = owed {
                        owed.answer(outcome);
                    }
                };
                caches.drop_then(node, range, Box::new(then));
                if is_late {
                    return Ok(After::Nothing);
                }
            }
        }
        reply.put(&outcome?);
        Ok(After::Send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_requests_are_left_to_reads() {
        let direct = Arc::new(DirectWrites::new(32));
        let withheld: Vec<_> = (0..30).map(|_| direct.withhold()).collect();
        assert!(withheld.iter().all(Option::is_some));
        assert!(direct.withhold().is_none());
        assert!(direct.withhold().is_none(), "a refused one does not count");
        drop(withheld);
        assert!(direct.withhold().is_some());
    }
}
