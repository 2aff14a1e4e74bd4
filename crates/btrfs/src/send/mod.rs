//! Sending: the commands that make a copy of a read-only subvolume, or turn a copy of its parent
//! into one. docs/design/send.md.
//!
//! Two committed trees are compared, and blocks that they share are skipped, so the work is that of
//! the difference. Nothing is locked and nothing is changed: the volume is open for reading alone,
//! and the subvolumes are read-only.

mod clones;
mod content;
mod extents;
mod names;
mod place;
mod side;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use btrfs_format::{ObjectId, TreeId};
use btrfs_stream::{Command, Writer};
use cowshed_vfs::Error as Errno;

use crate::diff::changes;
use crate::files::Files;
use crate::mount::Mount;
use crate::object::{Inode, Subvol};
use crate::subvol;
use clones::CloneIndex;
use place::Places;
pub use side::SendError;
use side::{Result, Side};

/// What is sent.
#[derive(Clone, Debug)]
pub struct Request {
    /// A read-only subvolume.
    pub subvolume: TreeId,
    /// A read-only subvolume that the receiver has: what it has in common with the other is not
    /// sent.
    pub parent: Option<TreeId>,
    /// Read-only subvolumes that the receiver has: their extents are cloned and not sent.
    pub sources: Vec<TreeId>,
    /// The name that the copy gets.
    pub name: Vec<u8>,
    /// Compressed extents are sent as they lie. From version 2 on.
    pub is_compressed: bool,
    /// Ranges that changed are named; their data is left out.
    pub is_without_data: bool,
}

/// Opens the volume once more, as it is now.
pub type Reopen<'a> = &'a dyn Fn() -> crate::error::Result<Arc<Mount>>;

/// Reads data of the subvolume that is sent.
///
/// Another process may serve the volume, and commit. What is read-only stays where it is, but the
/// tree of checksums does not: its blocks are replaced, and used again. So a read that fails is
/// repeated with the volume as it is by then.
struct DataReader<'a> {
    mount: Arc<Mount>,
    subvol: Arc<Subvol>,
    reopen: Option<Reopen<'a>>,
}

impl DataReader<'_> {
    /// Reads of an inode.
    fn read<T>(
        &mut self,
        ino: ObjectId,
        mut read: impl FnMut(&Files, &Arc<Inode>) -> crate::error::Result<T>,
    ) -> Result<T> {
        loop {
            let table = &self.mount.objects().inodes;
            let inode = table.load(&self.subvol, ino)?.ok_or(Errno::Corrupt)?;
            let done = read(self.mount.files(), &inode);
            // Millions of files may come by.
            table.note_idle(&inode);
            match done {
                Err(error) => {
                    if !self.has_moved_on()? {
                        return Err(error.into());
                    }
                }
                Ok(value) => return Ok(value),
            }
        }
    }

    /// There were commits since the volume was opened. It is open as it is now.
    fn has_moved_on(&mut self) -> Result<bool> {
        let Some(reopen) = self.reopen else { return Ok(false) };
        let fresh = reopen()?;
        let generation = |mount: &Mount| mount.store().volume().superblock().generation.get();
        if generation(&fresh) <= generation(&self.mount) {
            return Ok(false);
        }
        let id = self.subvol.id;
        self.subvol = subvol::load(fresh.files(), id)?.ok_or(SendError::Missing(id))?;
        self.mount = fresh;
        Ok(true)
    }
}

/// One sending at work.
struct Sender<'a, W> {
    reader: DataReader<'a>,
    request: &'a Request,
    out: &'a mut Writer<W>,
    new: Side,
    old: Option<Side>,
    places: Places,
    /// Directories that are made.
    made: HashSet<ObjectId>,
    /// Paths of inodes that have left all their old names, and are no directories.
    moved: HashMap<ObjectId, Vec<u8>>,
    /// Temporary names were in the root directory.
    uses_root: bool,
    clones: CloneIndex,
    /// For data on its way from the volume to the stream.
    buffer: Vec<u8>,
}

/// Writes the commands of one subvolume, [`Command::End`] included. `reopen`: where another process
/// may write to the volume.
///
/// # Errors
/// What the volume and the output report; a subvolume that is missing, or not read-only.
pub fn send<W: Write>(
    mount: &Arc<Mount>,
    reopen: Option<Reopen<'_>>,
    request: &Request,
    out: &mut Writer<W>,
) -> Result<()> {
    let files = &**mount.files();
    let new = Side::open(files, request.subvolume)?;
    let old = request.parent.map(|id| Side::open(files, id)).transpose()?;
    let sources = request.sources.iter().map(|id| Side::open(files, *id));
    let mut sources = sources.collect::<Result<Vec<_>>>()?;
    sources.extend(old.clone());
    let (uuid, ctransid, path) = (new.uuid, new.ctransid, request.name.as_slice());
    out.write(&match &old {
        None => Command::Subvol { path, uuid, ctransid },
        Some(old) => Command::Snapshot {
            path,
            uuid,
            ctransid,
            clone_uuid: old.uuid,
            clone_ctransid: old.ctransid,
        },
    })?;
    let mut clones = CloneIndex::new(sources);
    let old_tree = old.as_ref().map(|old| &*old.subvol.tree);
    let changed = changes::collect(old_tree, &new.subvol.tree, &mut clones)?;
    clones.load(files)?;
    let mut sender = Sender {
        places: Places::new(new.subvol.clone(), old.as_ref().map(|old| old.subvol.clone())),
        reader: DataReader {
            mount: mount.clone(),
            subvol: new.subvol.clone(),
            reopen,
        },
        request,
        out,
        new,
        old,
        made: HashSet::new(),
        moved: HashMap::new(),
        uses_root: false,
        clones,
        buffer: Vec::new(),
    };
    sender.vacate(&changed)?;
    sender.make_dirs(&changed)?;
    for inode in changed.iter().filter(|inode| !inode.is_dir()) {
        sender.make_names(inode)?;
        sender.content(inode)?;
    }
    // Their times are those after all changes of names.
    for dir in changed.iter().filter(|inode| inode.is_dir()) {
        sender.content(dir)?;
    }
    let root = sender.new.subvol.root_ino;
    if sender.uses_root && !changed.iter().any(|inode| inode.ino == root) {
        sender.times(root)?;
    }
    sender.out.write(&Command::End)?;
    Ok(())
}
