//! What is written to the kernel for it to forget.

use std::io;
use std::sync::{Arc, Weak};

use cowshed_vfs::NodeId;
use zerocopy::IntoBytes;

use crate::proto::flags::EXPIRE_ONLY;
use crate::proto::wire::{NotifyInvalEntry, NotifyInvalInode, NotifyPrune, notify};
use crate::transport::dev::Device;

/// Sends notifications to the kernel. A node or name that the kernel does not remember is no error;
/// a session that has ended is (`NotConnected`).
///
/// It keeps nothing of the session alive: a file system may hold it, which the session holds
/// itself.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Weak<Device>,
    /// Of the protocol, as agreed on.
    minor: u32,
}

impl Notifier {
    pub(crate) fn new(device: Weak<Device>, minor: u32) -> Notifier {
        Notifier { device, minor }
    }

    fn device(&self) -> io::Result<Arc<Device>> {
        self.device.upgrade().ok_or(io::ErrorKind::NotConnected.into())
    }

    /// The attributes of a node, and its cached content in a range of bytes. A length of 0: to the
    /// end. A negative offset: attributes only.
    pub fn inval_inode(&self, node: NodeId, offset: i64, len_bytes: i64) -> io::Result<()> {
        let body = NotifyInvalInode {
            ino: node.0,
            off: offset,
            len: len_bytes,
        };
        unknown_is_fine(self.device()?.notify(notify::INVAL_INODE, &body, &[]))
    }

    /// A name in a directory. `expire`: it may still be true, but has to be looked up again; else
    /// it is dropped, and what is mounted or open below it is detached.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8], expire: bool) -> io::Result<()> {
        let flags = if expire { EXPIRE_ONLY } else { 0 };
        let body = NotifyInvalEntry {
            parent: parent.0,
            namelen: name.len() as u32,
            flags,
        };
        unknown_is_fine(self.device()?.notify(notify::INVAL_ENTRY, &body, &[name, b"\0"]))
    }

    /// Nodes that nothing uses, to be forgotten. `Unsupported` before protocol 7.45 (Linux 6.18).
    pub fn prune(&self, nodes: &[NodeId]) -> io::Result<()> {
        if !self.can_prune() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let nodes: Vec<u64> = nodes.iter().map(|node| node.0).collect();
        let body = NotifyPrune {
            count: nodes.len() as u32,
            padding: 0,
            spare: 0,
        };
        self.device()?.notify(notify::PRUNE, &body, &[nodes.as_bytes()])
    }

    /// Whether the kernel has [`Notifier::prune`].
    pub(super) fn can_prune(&self) -> bool {
        self.minor >= 45
    }

    /// All names at once, each to be looked up again when it is next used. `Unsupported` before
    /// protocol 7.44 (Linux 6.16).
    pub fn inc_epoch(&self) -> io::Result<()> {
        if self.minor < 44 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.device()?.notify(notify::INC_EPOCH, &(), &[])
    }
}

fn unknown_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}
