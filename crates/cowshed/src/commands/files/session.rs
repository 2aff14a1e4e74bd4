//! One run of a command: the images that it opened, what it complains about, and the commit at its
//! end.
//!
//! All changes of a command are one commit. A refusal of one operand (no such file) leaves the
//! others in place, as coreutils do; a failure of the volume (no space, a device) gives the whole
//! command up, and the image is as before.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cowshed_device::{BlockDevice, OpenMode};

use super::host::Host;
use super::image::Image;
use super::side::{Follow, Side, Stat};
use crate::commands::offline::{Engine, image_of, open_named};
use crate::devices::{ReadArgs, part_bytes, slice, split_part};
use crate::people::{self, printable};
use crate::sys;

/// Where paths without an image lie.
#[derive(Clone, Debug, Default)]
pub enum Base {
    /// On the host.
    #[default]
    Host,
    /// In the image of a shell, from its directory. `host:PATH` is a path of the host.
    Shell {
        image: PathBuf,
        dir: PathBuf,
        /// `None`: nothing is asked.
        answers: Option<Rc<dyn Answers>>,
    },
}

/// The reader of a shell's lines, which has read ahead of the command.
pub trait Answers: std::fmt::Debug {
    /// Asks a question and reads the answer. `None`: there is none.
    fn answer(&self, question: &str) -> Option<String>;
}

/// A name in a directory of one side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    side: usize,
    /// Device, or subvolume, and number.
    dir: (u64, u64),
    name: OsString,
}

/// A path on one of the sides.
#[derive(Clone)]
pub struct Place {
    pub side: Rc<dyn Side>,
    pub path: PathBuf,
    /// As the user named it.
    pub shown: OsString,
}

impl Place {
    pub fn join(&self, name: &OsStr) -> Place {
        Place {
            side: self.side.clone(),
            path: self.path.join(name),
            shown: join_shown(&self.shown, name),
        }
    }

    pub fn stat(&self, follow: Follow) -> io::Result<Stat> {
        self.side.stat(&self.path, follow)
    }

    pub fn is_on(&self, other: &Place) -> bool {
        self.side.identity() == other.side.identity()
    }

    /// The directory that the last name is in.
    pub fn parent(&self) -> PathBuf {
        let bytes = self.path.as_os_str().as_bytes();
        let (start, _) = last_name(bytes);
        match &bytes[..start] {
            b"" => PathBuf::from("."),
            dir => PathBuf::from(OsStr::from_bytes(dir)),
        }
    }

    /// The name as such, however its path is spelled; two hard links are two. `None`: its directory
    /// is not there.
    pub fn entry(&self) -> Option<Entry> {
        let dir = self.side.stat(&self.parent(), Follow::Yes).ok()?;
        Some(Entry {
            side: self.side.identity(),
            dir: (dir.dev, dir.ino),
            name: self.name(),
        })
    }

    pub fn is_same_entry(&self, other: &Place) -> bool {
        self.is_on(other)
            && self.name() == other.name()
            && self.entry().is_some_and(|entry| Some(entry) == other.entry())
    }

    /// Whether it lies below a directory. `follow`: what is meant where that is a symbolic link.
    pub fn is_below(&self, top: &Place, follow: Follow) -> bool {
        let Ok(stat) = top.stat(follow) else { return false };
        if !top.is_on(self) || !stat.is_dir() {
            return false;
        }
        // The name itself need not be there; from its directory on, upwards.
        let mut dir = match self.path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            Some(_) => PathBuf::from("."),
            None => self.path.clone(),
        };
        loop {
            let Ok(here) = self.side.stat(&dir, Follow::Yes) else {
                return false;
            };
            if (here.dev, here.ino) == (stat.dev, stat.ino) {
                return true;
            }
            dir.push("..");
            match self.side.stat(&dir, Follow::Yes) {
                Ok(above) if (above.dev, above.ino) != (here.dev, here.ino) => {}
                _ => return false,
            }
        }
    }

    /// Between apostrophes, for messages.
    pub fn quoted(&self) -> String {
        quoted(&self.shown)
    }

    /// The last name; empty for a root.
    pub fn name(&self) -> OsString {
        let bytes = self.path.as_os_str().as_bytes();
        let (start, end) = last_name(bytes);
        OsString::from_vec(bytes[start..end].to_vec())
    }
}

/// Where the last name of a path begins and ends.
fn last_name(path: &[u8]) -> (usize, usize) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|byte| *byte == b'/');
    (slash.map_or(0, |at| at + 1), end)
}

fn join_shown(dir: &OsStr, name: &OsStr) -> OsString {
    let mut shown = dir.to_owned();
    if !dir.as_bytes().ends_with(b"/") {
        shown.push("/");
    }
    shown.push(name);
    shown
}

pub fn quoted(name: &OsStr) -> String {
    format!("'{}'", printable(name))
}

/// The text of an error without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => text.trim_end_matches(&format!(" (os error {code})")).to_owned(),
        None => text,
    }
}

/// What helps on a full volume.
const FULL_HINT: &str = "; remove files by a command of its own, or build the image with --slack SIZE, or enlarge it \
                         (truncate -s +SIZE, then btrfs filesystem resize max on a mount of Linux)";

/// A disk or image file, opened once for all of its volumes.
struct Disk {
    path: PathBuf,
    device: Arc<dyn BlockDevice>,
    mode: OpenMode,
}

#[derive(Clone)]
struct Opened {
    /// As the user named it.
    path: PathBuf,
    disk: PathBuf,
    /// Where the volume begins on the disk.
    start_bytes: u64,
    image: Rc<Image>,
    is_written: bool,
    /// The last transaction on disk before the command.
    generation: u64,
}

/// What was copied to another side and is to be removed.
struct Moved {
    from: Place,
    is_dir: bool,
}

/// See the module.
pub struct Session<'b> {
    name: &'static str,
    base: &'b Base,
    disks: RefCell<Vec<Disk>>,
    opened: RefCell<Vec<Opened>>,
    host: Rc<Host>,
    /// How volumes are opened that are not written.
    read: RefCell<ReadArgs>,
    has_failed: Cell<bool>,
    /// Moved to another side: removed when the copies are durable.
    moved: RefCell<Vec<Moved>>,
    /// A directory of the host that files were moved to.
    host_target: RefCell<Option<PathBuf>>,
}

impl<'b> Session<'b> {
    pub fn new(name: &'static str, base: &'b Base) -> Self {
        Session {
            name,
            base,
            disks: RefCell::default(),
            opened: RefCell::default(),
            host: Rc::new(Host::anywhere()),
            read: RefCell::default(),
            has_failed: Cell::new(false),
            moved: RefCell::default(),
            host_target: RefCell::default(),
        }
    }

    /// For volumes that are opened to be read from now on.
    pub fn read_with(&self, args: &ReadArgs) {
        self.read.replace(args.clone());
    }

    /// Takes a device for the disk image of that name.
    #[cfg(test)]
    pub fn with_disk(self, name: &str, device: Arc<dyn BlockDevice>) -> Self {
        self.disks.borrow_mut().push(Disk {
            path: name.into(),
            device,
            mode: OpenMode::ReadWrite,
        });
        self
    }

    /// The image and the path in it that an operand names; `None`: a path of the host.
    fn split(&self, operand: &Path) -> Option<(PathBuf, PathBuf)> {
        if let Base::Shell { image, dir, .. } = self.base {
            return match operand.as_os_str().as_bytes().strip_prefix(b"host:") {
                Some(_) => None,
                None => Some((image.clone(), dir.join(operand))),
            };
        }
        let (image, inside) = image_of(operand)?;
        Some((image.to_owned(), PathBuf::from(OsStr::from_bytes(inside))))
    }

    pub fn is_image(&self, operand: &Path) -> bool {
        self.split(operand).is_some()
    }

    /// What an operand names, on either side.
    pub fn place(&self, operand: &Path, mode: OpenMode) -> Result<Place> {
        let shown = operand.as_os_str().to_owned();
        let Some((image, path)) = self.split(operand) else {
            let bytes = operand.as_os_str().as_bytes();
            let bytes = match self.base {
                Base::Shell { .. } => bytes.strip_prefix(b"host:").unwrap_or(bytes),
                Base::Host => bytes,
            };
            return Ok(Place {
                side: self.host.clone(),
                path: PathBuf::from(OsStr::from_bytes(bytes)),
                shown,
            });
        };
        Ok(Place {
            side: self.image(&image, mode)?,
            path,
            shown,
        })
    }

    /// As [`Session::place`], with the image itself. Errors: a path of the host.
    pub fn in_image(&self, operand: &Path, mode: OpenMode) -> Result<(Rc<Image>, Place)> {
        let Some((image, path)) = self.split(operand) else {
            bail!(
                "{}: not in an image: name it as IMAGE:/PATH",
                quoted(operand.as_os_str())
            );
        };
        let image = self.image(&image, mode)?;
        let place = Place {
            side: image.clone(),
            path,
            shown: operand.as_os_str().to_owned(),
        };
        Ok((image, place))
    }

    /// Each image is opened once. What is to be written is asked for first.
    fn image(&self, path: &Path, mode: OpenMode) -> Result<Rc<Image>> {
        self.open_image(path, mode).with_context(|| path.display().to_string())
    }

    fn open_image(&self, path: &Path, mode: OpenMode) -> Result<Rc<Image>> {
        let (disk, part) = split_part(path);
        let disk = disk.canonicalize().unwrap_or_else(|_| disk.to_owned());
        let device = self.disk(&disk, mode)?;
        let bytes = part_bytes(&*device, part)?;
        let mut opened = self.opened.borrow_mut();
        let mut known = opened.iter();
        if let Some(found) = known.find(|opened| opened.disk == disk && opened.start_bytes == bytes.start) {
            // It was opened as it is now: other options would be for nothing.
            if found.is_written && mode == OpenMode::ReadOnly && !self.read.borrow().is_default() {
                bail!("an image that is written is not read with -o or -D");
            }
            return Ok(found.image.clone());
        }
        let is_written = mode == OpenMode::ReadWrite;
        let device = slice(device, &bytes)?;
        let engine = match is_written {
            true => Engine::open_for_one_commit(device, mode)?,
            false => Engine::open_to_read(device, &disk, &self.read.borrow())?,
        };
        let generation = engine.volume.info().generation;
        let image = Rc::new(Image::new(engine, is_written));
        opened.push(Opened {
            path: path.to_owned(),
            disk,
            start_bytes: bytes.start,
            image: image.clone(),
            is_written,
            generation,
        });
        Ok(image)
    }

    fn disk(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let mut disks = self.disks.borrow_mut();
        // One that was opened to be read keeps writers out, this one, too.
        let can = |disk: &&Disk| disk.path == path && (disk.mode == mode || mode == OpenMode::ReadOnly);
        if let Some(disk) = disks.iter().find(can) {
            return Ok(disk.device.clone());
        }
        let device = open_named(path, mode)?;
        disks.push(Disk {
            path: path.to_owned(),
            device: device.clone(),
            mode,
        });
        Ok(device)
    }

    /// A message; the exit code will be 1.
    pub fn complain(&self, text: impl Display) {
        self.warn(text);
        self.has_failed.set(true);
    }

    /// A message that does not change the exit code.
    pub fn warn(&self, text: impl Display) {
        people::warn(format_args!("cowshed {}: {text}", self.name));
    }

    /// As coreutils word it: cannot WHAT 'PLACE': REASON.
    pub fn cannot(&self, what: &str, place: &Place, error: &io::Error) {
        self.complain(format_args!("cannot {what} {}: {}", place.quoted(), reason(error)));
    }

    /// A line of output of a command that changes something. The change counts, not its reader.
    pub fn say(&self, text: impl Display) {
        people::say(text);
    }

    /// Asks on the terminal. True: yes.
    pub fn asks(&self, what: impl Display) -> bool {
        let question = format!("cowshed {}: {what}? ", self.name);
        let answer = match self.base {
            Base::Shell { answers, .. } => answers.as_ref().and_then(|answers| answers.answer(&question)),
            Base::Host => {
                people::warn_part(question);
                io::stdin().lines().next().and_then(Result::ok)
            }
        };
        answer.is_some_and(|answer| answer.trim_start().starts_with(['y', 'Y']))
    }

    /// Some volume failed: what is left of the command need not be done.
    pub fn is_broken(&self) -> bool {
        self.opened
            .borrow()
            .iter()
            .any(|opened| opened.image.broken().is_some())
    }

    /// `from` was copied to `to` on another side, and is removed when the copy is durable.
    pub fn remove_when_durable(&self, from: &Place, to: &Place) {
        self.moved.borrow_mut().push(Moved {
            from: from.clone(),
            is_dir: from.stat(Follow::No).is_ok_and(|stat| stat.is_dir()),
        });
        if !to.side.is_image() {
            self.host_target.replace(Some(to.parent()));
        }
    }

    /// Whether a place is to be removed, itself or with a directory that it is in.
    pub fn is_moved(&self, place: &Place) -> bool {
        let moved = self.moved.borrow();
        moved
            .iter()
            .any(|Moved { from, is_dir }| from.is_same_entry(place) || *is_dir && place.is_below(from, Follow::No))
    }

    /// Commits, or gives up. `remove` removes what was moved, and complains by itself. The exit
    /// code.
    ///
    /// What was moved to another side is removed last, and only if all else is durable: the images
    /// that it was moved to first, then those that it is removed from, which have no other changes.
    pub fn finish(self, remove: impl Fn(&Self, &Place)) -> u8 {
        let moved = self.moved.take();
        let opened = self.opened.borrow().clone();
        let (lasts, firsts): (Vec<_>, Vec<_>) = opened.iter().filter(|opened| opened.is_written).partition(|opened| {
            moved
                .iter()
                .any(|moved| moved.from.side.identity() == opened.image.identity())
        });
        let mut is_well = !self.is_broken() && self.sync_host();
        for opened in firsts {
            is_well &= self.commit(opened, is_well);
        }
        if is_well {
            for moved in &moved {
                remove(&self, &moved.from);
            }
            is_well = !self.is_broken();
        }
        for opened in lasts {
            is_well &= self.commit(opened, is_well);
        }
        self.opened.take();
        u8::from(self.has_failed.get())
    }

    /// Makes durable what was moved to the host.
    fn sync_host(&self) -> bool {
        let Some(dir) = self.host_target.take() else {
            return true;
        };
        let Ok(opened) = std::fs::File::open(&dir) else {
            // One that can be written and not be read.
            rustix::fs::sync();
            return true;
        };
        let Err(error) = sys::sync_file_system(opened) else {
            return true;
        };
        self.complain(format_args!("{}: {}", quoted(dir.as_os_str()), reason(&error)));
        false
    }

    /// Commits an image, or gives it up where something else failed. False: it is not committed.
    fn commit(&self, opened: &Opened, is_well: bool) -> bool {
        let volume = &opened.image.engine().volume;
        let failure = match opened.image.broken() {
            Some(error) => Some(io::Error::from(error)),
            None if !is_well => Some(io::Error::from_raw_os_error(libc::ECANCELED)),
            None => volume.sync().err().map(|failure| failure.error().into()),
        };
        let Some(error) = failure else { return true };
        let is_as_before = volume.info().generation == opened.generation;
        volume.abort("the command is given up");
        let state = match is_as_before {
            true => "nothing was changed",
            false => "a part of the changes is on disk",
        };
        let hint = match error.raw_os_error() {
            Some(libc::ENOSPC) => FULL_HINT,
            _ => "",
        };
        self.complain(format_args!(
            "{}: {}: {state}{hint}",
            quoted(opened.path.as_os_str()),
            reason(&error)
        ));
        false
    }

    /// Gives up what was not committed.
    pub fn give_up(&self) {
        for opened in self.opened.take() {
            if opened.is_written {
                opened.image.engine().volume.abort("the command is given up");
            }
        }
    }
}

/// Half of a command is not committed, whatever ends it.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
