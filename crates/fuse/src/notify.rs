//! Telling the kernel that what it remembers is no longer so. Needed only for changes that did not
//! come through the mount.
//!
//! Never call from inside a file system's method that holds a lock which other methods need: the
//! kernel may have to finish requests first.

mod held;
mod notifier;
mod prune;

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cowshed_vfs::{Caches, Error, Held, NodeId, Remembered, Result};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::thread::gettid;

use crate::server::{DropPages, InFlight};
use crate::sys;
use crate::transport::processors::{Mover, Place};
pub use notifier::Notifier;

/// How long a worker waits until the kernel has dropped content. The kernel itself waits for reads
/// of the same pages that have begun; they may need this very worker, so the wait must end.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// What a thread is asked.
enum Order {
    /// Content to drop.
    Drop { node: NodeId, ranges: Vec<Range<u64>> },
    /// Content to drop, and what to do then.
    DropThen {
        node: NodeId,
        range: Range<u64>,
        then: Box<dyn FnOnce() + Send>,
    },
    /// A name that came or went. `expire`: as for [`Notifier::inval_entry`].
    Name {
        parent: NodeId,
        name: Vec<u8>,
        expire: bool,
    },
    /// Whom to tell when all that was ordered of the thread before is done.
    Tell(Sender<()>),
}

impl Order {
    /// Waits of [`Caches::settle`] are for it.
    fn is_counted(&self) -> bool {
        matches!(self, Order::Drop { .. } | Order::Name { .. })
    }

    fn obey(self, notifier: &Notifier, pending: &AtomicU64) {
        match self {
            Order::Drop { node, ranges } => {
                drop_content(notifier, node, ranges);
                pending.fetch_sub(1, Ordering::Release);
            }
            Order::DropThen { node, range, then } => {
                drop_content(notifier, node, vec![range]);
                then();
            }
            Order::Name { parent, name, expire } => {
                if let Err(error) = notifier.inval_entry(parent, &name, expire) {
                    tracing::debug!(%error, "a cached name was not dropped");
                }
                pending.fetch_sub(1, Ordering::Release);
            }
            // The waiting thread may have gone.
            Order::Tell(done) => drop(done.send(())),
        }
    }
}

/// A thread that obeys orders one after the other. It ends with this value.
#[derive(Debug)]
struct Queue {
    /// Some at a time: the thread is woken once for all of them.
    orders: Sender<Vec<Order>>,
    mover: Mutex<Mover>,
    /// Orders to drop that are not done yet.
    pending: Arc<AtomicU64>,
}

impl Queue {
    fn new(name: &str, notifier: &Notifier) -> io::Result<Queue> {
        let (sender, orders) = mpsc::channel::<Vec<Order>>();
        let (own_number, number) = mpsc::channel();
        let pending: Arc<AtomicU64> = Arc::default();
        let (notifier, counted) = (notifier.clone(), pending.clone());
        std::thread::Builder::new().name(name.into()).spawn(move || {
            // Another thread waits for it below.
            let _ = own_number.send(gettid());
            for order in orders.into_iter().flatten() {
                order.obey(&notifier, &counted);
            }
        })?;
        let thread = number.recv().map_err(io::Error::other)?;
        Ok(Queue {
            orders: sender,
            mover: Mutex::new(Mover::of(thread)),
            pending,
        })
    }

    /// Orders something, and returns when it is done, or after a bounded time.
    fn order_and_wait(&self, mut orders: Vec<Order>) {
        let (done, is_done) = mpsc::channel();
        orders.push(Order::Tell(done));
        if let Some(here) = sys::processor() {
            // The thread runs here while this one waits: waking it on another processor takes
            // longer than what it does for most orders.
            self.mover.lock().go_home(here);
        }
        if order(&self.orders, &self.pending, orders) && is_done.recv_timeout(DROP_WAIT).is_err() {
            tracing::debug!("what is cached goes later");
        }
    }

    /// Orders something that is done some time, beside the calling thread.
    fn order(&self, orders: Vec<Order>) {
        self.will_not_wait();
        order(&self.orders, &self.pending, orders);
    }

    /// The thread runs beside the calling one.
    fn will_not_wait(&self) {
        self.mover.lock().go(Place::Anywhere);
    }

    /// Returns when what was ordered before is done, or after a bounded time.
    fn settle(&self) {
        if self.pending.load(Ordering::Acquire) > 0 {
            self.order_and_wait(Vec::new());
        }
    }
}

/// The kernel's caches, for a file system that changes what they hold. Has threads of its own,
/// because dropping content waits for requests that are being served, and dropping a name for the
/// lock of its directory.
///
/// These are two threads. A rename holds the locks of its directories while it waits for the lock
/// of the file, which a direct write holds until its reply, which waits until content is dropped.
/// So content must not wait for a name.
#[derive(Debug)]
pub struct KernelCaches {
    notifier: Notifier,
    contents: Queue,
    names: Queue,
    /// The number of the mount's device, as mount tables have it.
    device: Option<String>,
    /// For what processes hold; where the device is known.
    looks: Option<held::Looks>,
    in_flight: Arc<InFlight>,
    /// To the thread that drops what is below deleted subvolumes, once there was one.
    pruning: OnceLock<Option<Sender<prune::Gone>>>,
}

impl KernelCaches {
    /// Starts the threads; they end with this value.
    pub(crate) fn new(
        notifier: Notifier,
        device: Option<String>,
        in_flight: Arc<InFlight>,
    ) -> io::Result<KernelCaches> {
        Ok(KernelCaches {
            contents: Queue::new("fuse-caches", &notifier)?,
            names: Queue::new("fuse-names", &notifier)?,
            notifier,
            looks: device.clone().map(held::Looks::new),
            device,
            in_flight,
            pruning: OnceLock::new(),
        })
    }

    /// The thread is started for the first deleted subvolume, and ends with this value.
    fn pruning(&self) -> Option<&Sender<prune::Gone>> {
        let start = || {
            let (sender, gone) = mpsc::channel();
            let (notifier, in_flight) = (self.notifier.clone(), self.in_flight.clone());
            let thread = std::thread::Builder::new().name("fuse-prune".into());
            match thread.spawn(move || prune::run(&notifier, &in_flight, &gone)) {
                Ok(_) => Some(sender),
                Err(error) => {
                    tracing::debug!(%error, "deleted subvolumes are dropped at once");
                    None
                }
            }
        };
        self.pruning.get_or_init(start).as_ref()
    }
}

/// Whether the thread takes them.
fn order(to: &Sender<Vec<Order>>, pending: &AtomicU64, orders: Vec<Order>) -> bool {
    let count = orders.iter().filter(|order| order.is_counted()).count() as u64;
    pending.fetch_add(count, Ordering::Relaxed);
    let is_taken = to.send(orders).is_ok();
    if !is_taken {
        pending.fetch_sub(count, Ordering::Relaxed);
    }
    is_taken
}

fn drop_content(notifier: &Notifier, node: NodeId, ranges: Vec<Range<u64>>) {
    for range in ranges {
        let len_bytes = i64::try_from(range.end - range.start).unwrap_or(0);
        let offset = i64::try_from(range.start).unwrap_or(0);
        if let Err(error) = notifier.inval_inode(node, offset, len_bytes) {
            tracing::debug!(%error, "cached content was not dropped");
        }
    }
}

/// The inode that a descriptor leads to, where `fdinfo` does not name it: before Linux 5.14. The
/// mount is not asked.
fn inode_of_descriptor(pid: u32, fd: i64) -> Result<u64> {
    let link = format!("/proc/{pid}/fd/{fd}");
    let found = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
    found.map(|found| found.stx_ino).map_err(|_| Error::NotSupported)
}

impl DropPages for KernelCaches {
    fn drop_then(&self, node: NodeId, range: Range<u64>, then: Box<dyn FnOnce() + Send>) {
        self.contents.will_not_wait();
        let unsent = self.contents.orders.send(vec![Order::DropThen { node, range, then }]);
        // The thread ends with this value, or by a panic.
        for order in unsent.err().into_iter().flat_map(|mpsc::SendError(orders)| orders) {
            if let Order::DropThen { then, .. } = order {
                then();
            }
        }
    }

    fn drop_listings(&self, dirs: Vec<NodeId>) {
        let whole = 0..u64::MAX;
        let orders = dirs.into_iter().map(|node| Order::Drop {
            node,
            ranges: vec![whole.clone()],
        });
        self.contents.order(orders.collect());
    }
}

impl Caches for KernelCaches {
    fn attributes_changed(&self, node: NodeId) {
        if let Err(error) = self.notifier.inval_inode(node, -1, 0) {
            tracing::debug!(%error, "cached attributes were not dropped");
        }
    }

    fn name_changed(&self, parent: NodeId, name: &[u8]) {
        self.attributes_changed(parent);
        let (name, expire) = (name.to_vec(), false);
        self.names.order_and_wait(vec![Order::Name { parent, name, expire }]);
    }

    fn subvolume_gone(&self, parent: NodeId, name: &[u8], remembered: Remembered) {
        let can_prune = self.notifier.can_prune();
        let Some(pruning) = can_prune.then(|| self.pruning()).flatten() else {
            return self.name_changed(parent, name);
        };
        self.attributes_changed(parent);
        let named = |expire| Order::Name {
            parent,
            name: name.to_vec(),
            expire,
        };
        self.names.order_and_wait(vec![named(true)]);
        let (orders, pending) = (self.names.orders.clone(), self.names.pending.clone());
        let dropped = vec![named(false)];
        let otherwise = Box::new(move || {
            order(&orders, &pending, dropped);
        });
        // The thread ends with this value, or by a panic.
        if let Err(mpsc::SendError(gone)) = pruning.send(prune::Gone { remembered, otherwise }) {
            (gone.otherwise)();
        }
    }

    /// No request holds a page of a listing locked, so that this waits for none.
    fn listing_changed(&self, dir: NodeId) {
        if let Err(error) = self.notifier.inval_inode(dir, 0, 0) {
            tracing::debug!(%error, "a cached listing was not dropped");
        }
    }

    fn expire_names(&self) -> Result<()> {
        self.in_flight.wait_for_all();
        match self.notifier.inc_epoch() {
            Ok(()) => Ok(()),
            // The session has ended: it remembers nothing.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "cached names cannot be expired");
                Err(Error::NotSupported)
            }
        }
    }

    fn content_changed(&self, node: NodeId, ranges: Vec<Range<u64>>) {
        self.contents.order_and_wait(vec![Order::Drop { node, ranges }]);
    }

    fn content_lost(&self, node: NodeId, ranges: Vec<Range<u64>>) {
        self.contents.order(vec![Order::Drop { node, ranges }]);
    }

    fn settle(&self) {
        self.contents.settle();
        self.names.settle();
    }

    fn has_ended(&self, pid: u32) -> bool {
        // Of another name space, or not there for us to see. Linux tells the number of the caller's
        // thread: where that has ended and its process has not, the wait is in vain, for a second.
        if pid == 0 || !Path::new("/proc/self/stat").exists() {
            return false;
        }
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            // The state stands behind the name, which is in parentheses and may hold anything.
            Ok(stat) => stat
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Asked of /proc, and not of the mount, which might have to wait for this very call.
    fn open_inode(&self, pid: u32, fd: i64) -> Result<u64> {
        let device = self.device.as_deref().filter(|_| pid != 0).ok_or(Error::NotSupported)?;
        let read = |file: String| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
        let about = read(format!("fdinfo/{fd}")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if Path::new("/proc/self/fdinfo").exists() => Error::BadHandle,
            _ => Error::NotSupported,
        })?;
        let field = |name: &str| {
            let line = about.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim)
        };
        let mount = field("mnt_id:").ok_or(Error::NotSupported)?;
        let table = read("mountinfo".into()).map_err(|_| Error::NotSupported)?;
        let mut lines = table.lines().map(|line| line.split(' '));
        let found = lines.find_map(|mut fields| (fields.next() == Some(mount)).then(|| fields.nth(1)));
        match (found.flatten(), field("ino:")) {
            (Some(found), Some(inode)) if found == device => inode.parse().map_err(|_| Error::NotSupported),
            (Some(found), None) if found == device => inode_of_descriptor(pid, fd),
            _ => Err(Error::CrossDevice),
        }
    }

    fn held(&self) -> Held<Vec<u64>> {
        self.looks.as_ref().map_or(Held::Unknown, held::Looks::look)
    }

    fn umask(&self, pid: u32) -> Option<u32> {
        // The line is the second. One call, where reading to the end takes eight.
        let mut page = [0; 4096];
        let bytes = File::open(format!("/proc/{pid}/status")).ok()?.read(&mut page).ok()?;
        let status = String::from_utf8_lossy(&page[..bytes]);
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(line.trim(), 8).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn inode_of_a_descriptor_is_found_without_its_number_in_fdinfo() {
        let file = tempfile::tempfile().unwrap();
        let pid = std::process::id();
        let found = inode_of_descriptor(pid, file.as_raw_fd().into());
        assert_eq!(found, Ok(file.metadata().unwrap().ino()));
        assert_eq!(inode_of_descriptor(pid, 1 << 30), Err(Error::NotSupported));
    }
}
