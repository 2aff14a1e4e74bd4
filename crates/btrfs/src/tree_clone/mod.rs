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
mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::{ObjectId, TreeId};
use btrfs_store::space::Budget;
use cowshed_vfs::{Context, Error as Errno, NotCloned, Timestamp, TreeCloneProgress};

use crate::access::{Caller, check_dir, may_create};
use crate::dir;
use crate::error::{Error, Result, StoreError};
use crate::files::{Files, prepare_and_join};
use crate::object::{Inode, Subvol};
use crate::reclaim;
use crate::staged::Staged;
use batch::{Made, Source, Target, concerns_entry};
use entries::{Choice, Listed, choose};

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
    queue: std::collections::VecDeque<Listed>,
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
}

impl Step {
    const MORE: Step = Step {
        is_done: false,
        refused: None,
        told: None,
    };
}

/// See the module.
pub(crate) struct Walk {
    frames: Vec<Frame>,
    /// Of the directory on top.
    path: Vec<u8>,
    /// Files with more names: the copy, and how many names are left to find.
    links: HashMap<(TreeId, ObjectId), (ObjectId, u32)>,
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
            links: HashMap::new(),
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
            self.go_on(files)?;
            return Ok(Step::MORE);
        }
        let choice = choose(files, ctx, frame, &self.links, self.newest)?;
        match choice {
            Choice::Skip => {
                frame.queue.pop_front();
                Ok(Step::MORE)
            }
            Choice::Refuse(error) => self.refuse(error),
            Choice::Link(source, copy) => {
                let linked = self.link(files, ctx, &source, copy);
                reclaim::settle(files, &source.inode);
                linked
            }
            Choice::Make(sources) => {
                let made = self.make(files, ctx, &sources);
                sources.iter().for_each(|source| reclaim::settle(files, &source.inode));
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

    fn make(&mut self, files: &Files, ctx: &Context, sources: &[Source]) -> Result<Step> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Step::MORE);
        };
        let target = Target {
            dir: &frame.dst,
            is_foreign: frame.src.is_none(),
            mtime: frame.times.map(|(_, mtime)| mtime),
        };
        let room_bytes = sources.len() * NAME_BYTES + 4 * files.store().nodes().nodesize_bytes();
        let one = &sources[..1];
        let mut made = batch::make(files, ctx, &target, sources, room_bytes);
        if sources.len() > 1 && matches!(made, Err(Error::Store(StoreError::NoSpace))) {
            made = batch::make(files, ctx, &target, one, ALONE_BYTES);
        }
        let mut made = made?;
        if matches!(made, Made::TooLong) {
            made = batch::make(files, ctx, &target, one, ALONE_BYTES)?;
        }
        if matches!(made, Made::TooLong | Made::TooManyExtents) && sources[0].inode.is_regular() {
            made = match alone::clone_file(files, ctx, &target, &sources[0]) {
                Ok(inode) => Made::Names(vec![inode.ino]),
                Err(error) if concerns_entry(&error) => Made::Refused(error),
                Err(error) => return Err(error),
            };
        }
        match made {
            Made::Names(numbers) => Ok(self.note_made(sources, &numbers)),
            Made::Refused(error) => self.refuse(error),
            Made::TooLong | Made::TooManyExtents => self.refuse(Errno::TooBig.into()),
        }
    }

    /// Takes what was made off the queue.
    fn note_made(&mut self, sources: &[Source], numbers: &[ObjectId]) -> Step {
        let Some(frame) = self.frames.last_mut() else {
            return Step::MORE;
        };
        for (source, ino) in sources.iter().zip(numbers) {
            frame.queue.pop_front();
            let inode = &source.inode;
            self.progress.entries += 1;
            if inode.is_dir() && !inode.is_placeholder() {
                frame.below.push(Below {
                    subvol: inode.subvol.clone(),
                    src: inode.ino,
                    dst: *ino,
                    name: source.name.clone(),
                });
                continue;
            }
            let attr = inode.attr_now();
            if inode.is_regular() {
                self.progress.bytes += attr.size;
            }
            if attr.nlink > 1 && !inode.is_dir() && self.links.len() < LINKED_MAX {
                self.links.insert((inode.tree.id(), inode.ino), (*ino, attr.nlink - 1));
            }
        }
        let is_known = !frame.dst.refs.is_idle();
        let names = sources[..numbers.len()].iter().map(|source| source.name.clone());
        Step {
            told: is_known.then(|| Told {
                dir: frame.dst.clone(),
                names: names.collect(),
                linked: None,
            }),
            ..Step::MORE
        }
    }

    /// One more name for a file that was cloned under another.
    fn link(&mut self, files: &Files, ctx: &Context, source: &Source, copy: ObjectId) -> Result<Step> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Step::MORE);
        };
        let key = (source.inode.tree.id(), source.inode.ino);
        let copied = files.objects().inodes.load(&frame.dst.subvol, copy)?;
        let Some(copied) = copied.filter(|inode| inode.attr_now().nlink > 0) else {
            // It was deleted meanwhile: this name gets a copy of its own.
            self.links.remove(&key);
            return Ok(Step::MORE);
        };
        // The walk has made the directory.
        let caller = Caller { ctx, checks: false };
        let linked = dir::link(files, &caller, &copied, &frame.dst, &source.name);
        reclaim::settle(files, &copied);
        match linked {
            Ok(()) => {}
            Err(Error::Outcome(Errno::TooManyLinks)) => {
                self.links.remove(&key);
                return Ok(Step::MORE);
            }
            Err(error) if concerns_entry(&error) => return self.refuse(error),
            Err(error) => return Err(error),
        }
        frame.queue.pop_front();
        self.progress.entries += 1;
        if let Some((_, left)) = self.links.get_mut(&key) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.links.remove(&key);
            }
        }
        let is_known = !frame.dst.refs.is_idle();
        Ok(Step {
            told: (is_known || !copied.refs.is_idle()).then(|| Told {
                dir: frame.dst.clone(),
                names: vec![source.name.clone()],
                linked: Some(copied),
            }),
            ..Step::MORE
        })
    }

    /// Leaves the first entry out.
    fn refuse(&mut self, error: Error) -> Result<Step> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Step::MORE);
        };
        let Some(listed) = frame.queue.pop_front() else {
            return Ok(Step::MORE);
        };
        if frame.src.is_none() {
            // Nothing is there to go on in.
            return Err(error);
        }
        let mut path = self.path.clone();
        push_name(&mut path, &listed.name);
        let error = match error {
            Error::Outcome(errno) => errno,
            error => {
                tracing::error!(%error, path = %String::from_utf8_lossy(&path), "not cloned");
                Errno::Io
            }
        };
        Ok(Step {
            refused: Some(NotCloned { path, error }),
            ..Step::MORE
        })
    }

    /// All names of the directory on top are made: into one below it, or up.
    fn go_on(&mut self, files: &Files) -> Result<()> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(());
        };
        if let Some(below) = frame.below.pop() {
            let src = files.objects().inodes.load(&below.subvol, below.src)?;
            let dst = files.objects().inodes.load(&frame.dst.subvol, below.dst)?;
            let is_there = |inode: &Option<Arc<Inode>>| inode.as_ref().is_some_and(|i| i.attr_now().nlink > 0);
            // Deleted meanwhile, on either side.
            let are_there = is_there(&src) && is_there(&dst);
            let (true, Some(src), Some(dst)) = (are_there, &src, &dst) else {
                src.iter().chain(&dst).for_each(|inode| reclaim::settle(files, inode));
                return Ok(());
            };
            if self.frames.len() > 1 {
                push_name(&mut self.path, &below.name);
            }
            dir::begin_listing(src)?;
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
            return Ok(());
        }
        let done = self.frames.pop();
        self.path
            .truncate(self.frames.last().map_or(0, |frame| frame.path_bytes));
        let Some(done) = done else { return Ok(()) };
        if let Some(times) = done.times {
            keep_times(files, &done.dst, times)?;
        }
        for inode in done.src.iter().chain([&done.dst]) {
            reclaim::settle(files, inode);
        }
        Ok(())
    }
}

fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Gives a directory the times of its source, where names that came otherwise than in a batch have
/// changed them.
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
