//! Clones of whole trees: docs/design/tree-clone.md.
//!
//! A walk over the directories of the source, depth first. Each step makes up to [`NAMES_MAX`]
//! names of one directory as one batch, content included: extents are shared by reference. Nothing
//! is held between two steps but inodes.
//!
//! Locks, within a step: operation locks of the target directory and of the files, in the order of
//! [`Inode::lock_key`]; then a join.

mod alone;
mod batch;
mod entries;
mod gather;
mod plan;

use std::collections::VecDeque;
use std::sync::Arc;

use btrfs_format::{ObjectId, TreeId};
use btrfs_store::space::Budget;
use cowshed_vfs::{Context, Error as Errno, FileKind, NotCloned, Timestamp, TreeCloneProgress};

use crate::access::{Caller, check_dir, may_create};
use crate::dir;
use crate::error::{Error, Result, StoreError};
use crate::files::{Files, prepare_and_join};
use crate::object::{Inode, Subvol};
use crate::reclaim;
use crate::staged::Staged;
use batch::{Made, MadeName, Source, Target, concerns_entry};
use entries::{Choice, Links, Listed, choose};

/// Names made in one step.
const NAMES_MAX: usize = 128;
/// Bytes of items for each of them, on average: more is left to the next step.
const NAME_BYTES: usize = 1280;
/// Room for a name that has a step of its own: its extents, and some attributes.
const ALONE_BYTES: usize = plan::EXTENTS_MAX * 156 + (64 << 10);
/// Files with several names of which not all were found yet: about 48 bytes each. The names of
/// those beyond it become files of their own.
const LINKED_MAX: usize = 1 << 20;

/// A directory of the source, and its copy.
struct Frame {
    /// `None`: above the tree. The tree's own directory is the only entry.
    src: Option<Arc<Inode>>,
    dst: Arc<Inode>,
    /// Listed and not done.
    queue: Queue,
    /// Where the listing goes on.
    cookie: u64,
    is_listed: bool,
    /// Directories that were made and not walked.
    below: Vec<Below>,
    /// Access and change of the source.
    times: Option<(Timestamp, Timestamp)>,
    path_bytes: usize,
}

/// A directory to be walked.
struct Below {
    subvol: Arc<Subvol>,
    src: ObjectId,
    dst: ObjectId,
    name: Box<[u8]>,
}

/// Names that a step made or changed, for front ends that remember some.
pub(crate) struct Told {
    pub(crate) dir: Arc<Inode>,
    pub(crate) names: Vec<Box<[u8]>>,
    /// It has one name more.
    pub(crate) linked: Option<Arc<Inode>>,
}

/// What a step did.
pub(crate) struct Step {
    pub(crate) is_done: bool,
    pub(crate) refused: Option<NotCloned>,
    pub(crate) told: Option<Told>,
    /// This directory is done, and has the times of its source.
    pub(crate) finished: Option<Arc<Inode>>,
}

impl Step {
    const MORE: Step = Step {
        is_done: false,
        refused: None,
        told: None,
        finished: None,
    };
}

/// A step, and what it means for the queue.
struct Taken {
    step: Step,
    /// So many entries are done.
    names: usize,
    /// These have to be loaded. None is done, then.
    load: Vec<usize>,
}

impl Taken {
    fn names(names: usize) -> Self {
        Self::told(names, None)
    }
    fn told(names: usize, told: Option<Told>) -> Self {
        Self {
            step: Step { told, ..Step::MORE },
            names,
            load: Vec::new(),
        }
    }
    fn load(load: Vec<usize>) -> Self {
        Self { load, ..Self::names(0) }
    }
}

type Queue = VecDeque<Listed>;

/// See the module.
pub(crate) struct Walk {
    frames: Vec<Frame>,
    /// Of the directory on top.
    path: Vec<u8>,
    links: Links,
    /// Directories of the target's subvolume from this number on are younger than the walk: its own
    /// among them, wherever they are moved to.
    newest: (TreeId, ObjectId),
    progress: TreeCloneProgress,
}

impl Walk {
    /// A walk from `src` to a new name. Errors: `NotDirectory`, `Exists`, `Invalid` (into itself),
    /// and those of making a name.
    pub(crate) fn new(
        files: &Files,
        ctx: &Context,
        src: &Arc<Inode>,
        parent: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Self> {
        check_dir(src)?;
        dir::check_name(name)?;
        may_create(files, &Caller { ctx, checks: true }, parent)?;
        if dir::lookup(files, parent, name)?.is_some() {
            return Err(Errno::Exists.into());
        }
        if dir::is_inside(files, parent, src)? {
            return Err(Errno::Invalid.into());
        }
        let top = Frame {
            src: None,
            dst: parent.clone(),
            queue: [Listed::top(name, src)].into(),
            cookie: 0,
            is_listed: true,
            below: Vec::new(),
            times: None,
            path_bytes: 0,
        };
        Ok(Self {
            frames: vec![top],
            path: Vec::new(),
            links: Links::new(),
            newest: (parent.tree.id(), parent.subvol.take_ino()?),
            progress: TreeCloneProgress::default(),
        })
    }

    pub(crate) fn progress(&self) -> TreeCloneProgress {
        self.progress
    }

    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Goes on. Errors end the walk.
    pub(crate) fn step(&mut self, files: &Files, ctx: &Context) -> Result<Step> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Step {
                is_done: true,
                ..Step::MORE
            });
        };
        if frame.queue.is_empty() && !frame.is_listed {
            entries::list_some(frame)?;
        }
        if frame.queue.is_empty() {
            return Ok(Step {
                finished: self.go_on(files)?,
                ..Step::MORE
            });
        }
        // The step changes the frame, but for its queue.
        let mut queue = std::mem::take(&mut frame.queue);
        let taken = self.take_some(files, ctx, &queue);
        if let Ok(taken) = &taken {
            queue.drain(..taken.names);
            for n in &taken.load {
                queue[*n].must_load = true;
            }
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.queue = queue;
        }
        Ok(taken?.step)
    }

    /// Does something about the first entries.
    fn take_some(&mut self, files: &Files, ctx: &Context, queue: &Queue) -> Result<Taken> {
        let Some(frame) = self.frames.last() else {
            return Ok(Taken::names(0));
        };
        let choice = choose(files, ctx, frame.src.as_ref(), queue, &self.links, self.newest)?;
        match choice {
            Choice::Skip => Ok(Taken::names(1)),
            Choice::Refuse(error) => self.refuse(&queue[0].name, error),
            Choice::Link(source, copy) => {
                let linked = self.link(files, ctx, (&source, &queue[0].name), copy);
                reclaim::settle(files, &source);
                linked
            }
            Choice::Make(sources) => {
                let made = self.make(files, ctx, &sources);
                let loaded = sources.iter().filter_map(Source::loaded);
                loaded.for_each(|inode| reclaim::settle(files, inode));
                made
            }
        }
    }

    /// The walk ends here: lets go of what it held.
    pub(crate) fn end(&mut self, files: &Files) {
        for frame in self.frames.drain(..) {
            for inode in frame.src.iter().chain([&frame.dst]) {
                reclaim::settle(files, inode);
            }
        }
    }

    fn make(&mut self, files: &Files, ctx: &Context, sources: &[Source<'_>]) -> Result<Taken> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Taken::names(0));
        };
        let target = Target {
            dir: &frame.dst,
            src_tree: &frame.src.as_ref().unwrap_or(&frame.dst).tree,
            is_foreign: frame.src.is_none(),
        };
        let room_bytes = sources.len() * NAME_BYTES + 4 * files.store().nodes().nodesize_bytes();
        let one = &sources[..1];
        let mut made = batch::make(files, ctx, &target, sources, room_bytes);
        if sources.len() > 1 && matches!(made, Err(Error::Store(StoreError::NoSpace)) | Ok(Made::Split)) {
            made = batch::make(files, ctx, &target, one, ALONE_BYTES);
        }
        let mut made = made?;
        if matches!(made, Made::TooLong) {
            made = batch::make(files, ctx, &target, one, ALONE_BYTES)?;
        }
        let is_long = matches!(made, Made::TooLong | Made::TooManyExtents);
        if is_long && sources[0].kind == FileKind::Regular {
            let Some(src) = sources[0].loaded() else {
                return Ok(Taken::load(vec![0]));
            };
            made = match alone::clone_file(files, ctx, &target, (src, sources[0].name)) {
                Ok(inode) => Made::Names(vec![batch::MadeName {
                    ino: inode.ino,
                    size_bytes: inode.attr_now().size,
                    source_links: src.attr_now().nlink,
                }]),
                Err(error) if concerns_entry(&error) => Made::Refused(error),
                Err(error) => return Err(error),
            };
        }
        match made {
            Made::Names(names) => Ok(self.note_made(sources, &names)),
            Made::Load(which) => Ok(Taken::load(which)),
            // Loaded once more: by its name.
            Made::Gone => Ok(Taken::load(vec![0])),
            Made::Refused(error) => self.refuse(sources[0].name, error),
            Made::Split => Ok(Taken::names(0)),
            Made::TooLong | Made::TooManyExtents => self.refuse(sources[0].name, Errno::TooBig.into()),
        }
    }

    /// Notes what was made of the first sources.
    fn note_made(&mut self, sources: &[Source<'_>], made: &[MadeName]) -> Taken {
        let Some(frame) = self.frames.last_mut() else {
            return Taken::names(made.len());
        };
        for (source, made) in sources.iter().zip(made) {
            self.progress.entries += 1;
            if source.kind == FileKind::Regular {
                self.progress.bytes += made.size_bytes;
            }
            let Some(inode) = source.loaded() else { continue };
            if inode.is_dir() && !inode.is_placeholder() {
                frame.below.push(Below {
                    subvol: inode.subvol.clone(),
                    src: inode.ino,
                    dst: made.ino,
                    name: source.name.into(),
                });
            } else if made.source_links > 1 && !inode.is_dir() && self.links.len() < LINKED_MAX {
                let key = (inode.tree.id(), inode.ino);
                self.links.insert(key, (made.ino, made.source_links - 1));
            }
        }
        let is_known = !frame.dst.refs.is_idle();
        let told = is_known.then(|| Told {
            dir: frame.dst.clone(),
            names: sources[..made.len()].iter().map(|source| source.name.into()).collect(),
            linked: None,
        });
        Taken::told(made.len(), told)
    }

    /// One more name for a file that was cloned under another.
    fn link(
        &mut self,
        files: &Files,
        ctx: &Context,
        (source, name): (&Arc<Inode>, &[u8]),
        copy: ObjectId,
    ) -> Result<Taken> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Taken::names(0));
        };
        let key = (source.tree.id(), source.ino);
        let copied = files.objects().inodes.load(&frame.dst.subvol, copy)?;
        let Some(copied) = copied.filter(|inode| inode.attr_now().nlink > 0) else {
            // It was deleted meanwhile: this name gets a copy of its own.
            self.links.remove(&key);
            return Ok(Taken::names(0));
        };
        // The walk has made the directory.
        let caller = Caller { ctx, checks: false };
        let linked = dir::link(files, &caller, &copied, &frame.dst, name);
        reclaim::settle(files, &copied);
        match linked {
            Ok(()) => {}
            Err(Error::Outcome(Errno::TooManyLinks)) => {
                self.links.remove(&key);
                return Ok(Taken::names(0));
            }
            Err(error) if concerns_entry(&error) => return self.refuse(name, error),
            Err(error) => return Err(error),
        }
        self.progress.entries += 1;
        if let Some((_, left)) = self.links.get_mut(&key) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.links.remove(&key);
            }
        }
        let is_known = !frame.dst.refs.is_idle();
        let told = (is_known || !copied.refs.is_idle()).then(|| Told {
            dir: frame.dst.clone(),
            names: vec![name.into()],
            linked: Some(copied),
        });
        Ok(Taken::told(1, told))
    }

    /// Leaves the first entry out.
    fn refuse(&mut self, name: &[u8], error: Error) -> Result<Taken> {
        if self.frames.last().is_none_or(|frame| frame.src.is_none()) {
            // Nothing is there to go on in.
            return Err(error);
        }
        let mut path = self.path.clone();
        push_name(&mut path, name);
        let error = match error {
            Error::Outcome(errno) => errno,
            error => {
                tracing::error!(%error, path = %String::from_utf8_lossy(&path), "not cloned");
                Errno::Io
            }
        };
        let step = Step {
            refused: Some(NotCloned { path, error }),
            ..Step::MORE
        };
        Ok(Taken {
            step,
            ..Taken::names(1)
        })
    }

    /// All names of the directory on top are made: into one below it, or up. Gives a directory that
    /// has got the times of its source.
    fn go_on(&mut self, files: &Files) -> Result<Option<Arc<Inode>>> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(None);
        };
        if let Some(below) = frame.below.pop() {
            let src = files.objects().inodes.load(&below.subvol, below.src)?;
            let dst = files.objects().inodes.load(&frame.dst.subvol, below.dst)?;
            let is_there = |inode: &Option<Arc<Inode>>| inode.as_ref().is_some_and(|i| i.attr_now().nlink > 0);
            // Deleted meanwhile, on either side.
            let are_there = is_there(&src) && is_there(&dst);
            let (true, Some(src), Some(dst)) = (are_there, &src, &dst) else {
                src.iter().chain(&dst).for_each(|inode| reclaim::settle(files, inode));
                return Ok(None);
            };
            if self.frames.len() > 1 {
                push_name(&mut self.path, &below.name);
            }
            let attr = src.attr_now();
            self.frames.push(Frame {
                src: Some(src.clone()),
                dst: dst.clone(),
                queue: Default::default(),
                cookie: 0,
                is_listed: false,
                below: Vec::new(),
                times: Some((attr.atime, attr.mtime)),
                path_bytes: self.path.len(),
            });
            return Ok(None);
        }
        let done = self.frames.pop();
        self.path
            .truncate(self.frames.last().map_or(0, |frame| frame.path_bytes));
        let Some(done) = done else { return Ok(None) };
        if let Some(times) = done.times {
            keep_times(files, &done.dst, times)?;
        }
        for inode in done.src.iter().chain([&done.dst]) {
            reclaim::settle(files, inode);
        }
        Ok(done.times.map(|_| done.dst))
    }
}

fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Gives a directory, whose names are made, the times of its source.
fn keep_times(files: &Files, dir: &Arc<Inode>, (atime, mtime): (Timestamp, Timestamp)) -> Result<()> {
    let attr = dir.attr_now();
    if (attr.atime, attr.mtime) == (atime, mtime) || attr.nlink == 0 {
        return Ok(());
    }
    let space = files.reserve(Budget::SETATTR)?;
    let _lock = dir.lock.write();
    let (join, mut staged) = prepare_and_join(files, |_| Ok(Staged::new(&dir.tree)))?;
    let mut state = dir.attr.lock();
    (state.attr.atime, state.attr.mtime) = (atime, mtime);
    state.attr.transid = join.generation();
    staged.put(dir.key(), dir.item_bytes(&state));
    join.apply(staged.into_batch(), space);
    drop(state);
    dir.unasked.note();
    Ok(())
}
