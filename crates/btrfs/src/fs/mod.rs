//! The mount as a [`cowshed_vfs::FileSystem`]: translation only. The rules live with the objects.

mod account;
mod atime;
mod flags;
mod handles;
mod names;
mod ops;
mod readdir;
mod root;
mod setattr;
mod subvolumes;
mod telling;
mod tree_clone;
mod views;
mod volume;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cowshed_vfs::{Attr, Context, Error as Errno, Handle, NodeId, StatFs};

pub use atime::AtimePolicy;
pub use root::SubvolChoice;
pub use subvolumes::info_of_root;

use crate::access::Caller;
use crate::compression::compress::CompressPolicy;
use crate::error::{Error, Result, StoreError};
use crate::mount::Mount;
use crate::object::{Inode, KeepAll, Membership, Policy};
use crate::subvol::number::Numbering;
use views::FrontEnd;

/// How long front ends may remember names and attributes: the mount is the only writer, so for
/// good.
const VALID: Duration = Duration::from_secs(86_400);

/// How a volume is shown.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// The subvolume whose root is the root of the mount.
    pub subvol: SubvolChoice,
    /// When an access changes atime.
    pub atime: AtimePolicy,
    /// Reading a directory does not change its atime.
    pub nodiratime: bool,
    /// New files have no checksums of data.
    pub nodatasum: bool,
    /// New files are written in place, without checksums.
    pub nodatacow: bool,
    /// Data of files is compressed. Files without checksums or copy on write are not.
    pub compress: Option<CompressPolicy>,
    /// Front ends need not open files: faster for small files. What may not be written (immutable
    /// and append-only files, read-only subvolumes) is then refused by the first write and not by
    /// `open`, files have no groups by ioctl, and no other view may show the same files.
    /// docs/decisions/010-files-without-open.md.
    pub stateless_open: bool,
    /// The user whose process serves the mount: may trim it, as root may.
    pub owner_uid: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            subvol: SubvolChoice::Default,
            atime: AtimePolicy::Relative,
            nodiratime: false,
            nodatasum: false,
            nodatacow: false,
            compress: None,
            stateless_open: false,
            owner_uid: 0,
        }
    }
}

/// One subvolume of a volume, shown as a tree of files with what lies below it.
pub struct Fs {
    mount: Arc<Mount>,
    options: MountOptions,
    root: Arc<Inode>,
    numbering: Arc<Numbering>,
    /// Permissions are checked here, not by the front end.
    checks: AtomicBool,
    /// Handles opened so far, by all views of the volume: what tells them apart.
    handles: Arc<AtomicU64>,
    front: Arc<FrontEnd>,
    member: Membership,
    /// Until the view ends.
    keeping: Option<KeepAll>,
}

impl Fs {
    /// Shows a subvolume. Errors: `NotFound` and `Invalid` (no such subvolume), and whatever
    /// reading finds.
    pub fn new(mount: Arc<Mount>, options: MountOptions) -> Result<Self> {
        mount.objects().set_policy(Policy {
            read_only: options.read_only || mount.store().volume().is_read_only(),
            nodatacow: options.nodatacow,
            nodatasum: options.nodatasum || options.nodatacow,
            compress: options.compress,
        });
        let root = root::resolve(&mount, &options.subvol)?;
        Self::show(&mount, root, options, Arc::default())
    }

    fn show(mount: &Arc<Mount>, root: Arc<Inode>, options: MountOptions, handles: Arc<AtomicU64>) -> Result<Self> {
        if root.ino != root.subvol.root_ino || root.is_placeholder() {
            return Err(Errno::Invalid.into());
        }
        let mut random = [0; 4];
        mount.store().env().random(&mut random);
        let numbering = Arc::new(Numbering::new(root.tree.id(), root.ino, random));
        let front = Arc::new(FrontEnd {
            numbering: numbering.clone(),
            caches: OnceLock::new(),
            is_stateless: options.stateless_open && !mount.store().volume().is_read_only(),
            mount: Arc::downgrade(mount),
        });
        // Files that may be open without a word of it stay in memory. Of a volume that does not
        // change, they may go: the next use finds them as they were.
        let keeping = front.is_stateless.then(|| mount.objects().inodes.keeping_all());
        let member = views::enter(mount, &root, &front)?;
        // The root is remembered as long as the view lives.
        mount.objects().views.add_lookup(member.id, &root);
        Ok(Self {
            mount: mount.clone(),
            options,
            root,
            numbering,
            checks: AtomicBool::new(true),
            handles,
            front,
            member,
            keeping,
        })
    }

    /// The engine below.
    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    fn stat_volume(&self) -> StatFs {
        let block = self.mount.store().volume().sectorsize_bytes();
        let blocks = |bytes: u64| bytes / u64::from(block);
        let space = self.mount.store().space().stat();
        StatFs {
            blocks: blocks(space.total_bytes),
            blocks_free: blocks(space.free_bytes),
            blocks_available: blocks(space.available_bytes),
            // Inode numbers are not counted: the kernel shows zeros too.
            files: 0,
            files_free: 0,
            bsize: block,
            frsize: block,
            name_bytes_max: crate::dir::NAME_BYTES_MAX as u32,
        }
    }

    fn caller<'a>(&self, ctx: &'a Context) -> Caller<'a> {
        Caller {
            ctx,
            checks: self.checks.load(Ordering::Relaxed),
        }
    }

    /// The inode of a node that the front end remembers.
    pub(crate) fn inode(&self, node: NodeId) -> Result<Arc<Inode>> {
        if node == NodeId::ROOT {
            return Ok(self.root.clone());
        }
        let (tree, ino) = self.numbering.inode_of(node).ok_or(Errno::Stale)?;
        Ok(self.mount.objects().inodes.known(tree, ino)?.ok_or(Errno::Stale)?)
    }

    /// Attributes with the number that callers see.
    fn attr(&self, inode: &Inode) -> Attr {
        let attr = inode.vfs_attr();
        let sector_bytes = self.mount.store().volume().sectorsize_bytes();
        Attr {
            ino: self.numbering.shown_of(inode),
            blksize: sector_bytes,
            // The inode counts in blocks, Linux in sectors.
            blocks_512: attr.blocks_512.next_multiple_of(u64::from(sector_bytes) / 512),
            ..attr
        }
    }
}

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fs")
            .field("mount", &self.mount)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The open file that errors of write-back are reported to; `None` where there is no handle.
fn opened_as(handle: Handle) -> Option<crate::pagecache::Opened> {
    handle.flags().map(|_| handle.0)
}

/// What callers are told. Faults of the volume and its devices go to the log with all that is
/// known.
fn errno(what: &'static str, error: Error) -> Errno {
    match error {
        Error::Outcome(errno) => errno,
        Error::Store(StoreError::NoSpace) => Errno::NoSpace,
        Error::Store(StoreError::ReadOnly) => Errno::ReadOnly,
        Error::Store(StoreError::Unsupported { ref feature }) => {
            tracing::debug!(what, %feature, "not supported");
            Errno::NotSupported
        }
        fault => {
            tracing::error!(what, error = %fault);
            Errno::Io
        }
    }
}
