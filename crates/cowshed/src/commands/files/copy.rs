//! The copier: files and trees from one side to the other, or within one, as cp(1) does.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;

use cowshed::FileKind;

use super::operands::Made;
use super::session::{Entry, Place, Session, reason};
use super::side::{Create, Follow, STEP_BYTES, Sink, Source, Stat};

/// Zeros of this many bytes become a hole with `--sparse=always`.
const ZEROS_BYTES: usize = 4096;
/// Names that are tried for what is to replace a file.
const TEMPORARY_NAMES: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    Auto,
    Always,
    Never,
}

/// What is kept of a file beside its contents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preserve {
    pub mode: bool,
    pub owner: bool,
    pub times: bool,
    pub links: bool,
    pub xattrs: bool,
}

/// What is made of a file that is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    #[default]
    Copy,
    HardLink,
    Symlink,
}

/// What becomes of a file that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    #[default]
    Replace,
    Ask,
    Keep,
}

/// Which files are older than what is copied, and so replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Update {
    #[default]
    All,
    None,
    Older,
}

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub is_recursive: bool,
    /// Symbolic links below and at the operands.
    pub follow: Follow,
    pub preserve: Preserve,
    pub sparse: When,
    pub reflink: When,
    pub form: Form,
    pub existing: Existing,
    pub update: Update,
    /// What lies in another subvolume, or on another file system of the host, is left out.
    pub one_file_system: bool,
    pub force: bool,
    /// Symbolic links are left out.
    pub skips_symlinks: bool,
    pub is_verbose: bool,
}

impl Options {
    /// A tree with everything that is known of its files.
    pub fn whole() -> Options {
        Options {
            is_recursive: true,
            follow: Follow::No,
            preserve: Preserve {
                mode: true,
                owner: true,
                times: true,
                links: true,
                xattrs: true,
            },
            sparse: When::Auto,
            reflink: When::Auto,
            form: Form::Copy,
            existing: Existing::Replace,
            update: Update::All,
            one_file_system: false,
            force: true,
            skips_symlinks: false,
            is_verbose: false,
        }
    }
}

/// Whether a place is copied.
type Wanted<'s> = dyn Fn(&Place) -> bool + 's;

/// One copy of several operands: hard links among them are known.
pub struct Copier<'s> {
    pub(super) session: &'s Session<'s>,
    pub(super) options: Options,
    /// Where files with several names were copied to.
    linked: HashMap<(usize, u64, u64), Place>,
    /// Directories that were made, by side, device and number: a copy does not go into itself.
    made: Vec<(usize, u64, u64)>,
    made_of_operands: Made,
    operands: HashSet<(Entry, u64, u64)>,
    /// The directories that are being copied, by device and number.
    within: Vec<(u64, u64)>,
    /// The device, or subvolume, of the operand that is being copied.
    start_dev: u64,
    /// Subvolumes that are left out.
    left_out: HashSet<u64>,
    /// Which of the files and directories below the operand are copied.
    wanted: Option<Box<Wanted<'s>>>,
}

const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl<'s> Copier<'s> {
    pub fn new(session: &'s Session<'s>, options: Options) -> Self {
        Copier {
            session,
            options,
            linked: HashMap::new(),
            made: Vec::new(),
            made_of_operands: Made::default(),
            operands: HashSet::new(),
            within: Vec::new(),
            start_dev: 0,
            left_out: HashSet::new(),
            wanted: None,
        }
    }

    /// Leaves out subvolumes of these numbers, with their directories.
    pub fn leave_out(&mut self, subvolumes: HashSet<u64>) {
        self.left_out = subvolumes;
    }

    /// Leaves out what is not wanted of what is below an operand; a directory with all that it has.
    pub fn keep_only(&mut self, wanted: impl Fn(&Place) -> bool + 's) {
        self.wanted = Some(Box::new(wanted));
    }

    /// Copies what is at `from` to the name `to`. False: something was complained about.
    pub fn copy(&mut self, from: &Place, to: &Place) -> bool {
        let stat = match from.stat(self.options.follow) {
            Ok(stat) => stat,
            Err(error) => {
                self.session.cannot("stat", from, &error);
                return false;
            }
        };
        let is_new = match from.entry() {
            Some(entry) => self.operands.insert((entry, stat.dev, stat.ino)),
            None => true,
        };
        if !is_new {
            let kind = if stat.is_dir() { "directory" } else { "file" };
            let from = from.quoted();
            self.session
                .warn(format_args!("warning: source {kind} {from} specified more than once"));
            return true;
        }
        self.start_dev = stat.dev;
        let copied = self.entry(from, &stat, to, true);
        if copied {
            self.note_made(to);
        }
        copied
    }

    /// An operand became what is at `to`.
    pub fn note_made(&mut self, to: &Place) {
        self.made_of_operands.note(to);
    }

    /// Whether the file `to` is what another operand became.
    pub fn has_made(&self, to: &Place) -> bool {
        self.made_of_operands.contains(to)
    }

    /// Whether a file that is there is left as it is.
    fn is_kept(&self, stat: &Stat, to: &Place, there: &Stat) -> bool {
        let is_older = |than: &Stat| (there.mtime.secs, there.mtime.nanos) < (than.mtime.secs, than.mtime.nanos);
        match (self.options.update, self.options.existing) {
            (Update::None, _) | (_, Existing::Keep) => true,
            (Update::Older, _) if !is_older(stat) => true,
            (_, Existing::Ask) => !self.session.asks(format_args!("overwrite {}", to.quoted())),
            (_, Existing::Replace) => false,
        }
    }

    fn entry(&mut self, from: &Place, stat: &Stat, to: &Place, is_operand: bool) -> bool {
        if self.session.is_broken() {
            return false;
        }
        if !is_operand && self.wanted.as_ref().is_some_and(|is_wanted| !is_wanted(from)) {
            return true;
        }
        if stat.is_dir() {
            return self.left_out.contains(&stat.dev) || self.directory(from, stat, to);
        }
        if stat.is_symlink() && self.options.skips_symlinks {
            return true;
        }
        let there = match to.stat(Follow::No) {
            Ok(there) => Some(there),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
            Err(error) => {
                self.session.cannot("create regular file", to, &error);
                return false;
            }
        };
        let key = (from.side.identity(), stat.dev, stat.ino);
        let has_links = self.options.preserve.links && stat.nlink > 1;
        if let Some(there) = there {
            let Some(leads_to) = self.leads_to(stat, to, &there, is_operand) else {
                return false;
            };
            if self.options.existing == Existing::Keep {
                return true;
            }
            let is_copy = self.options.form == Form::Copy;
            // A hard link takes no symbolic link for the file that it leads to.
            let is_link_in_the_way = self.options.form == Form::HardLink && there.is_symlink();
            let is_one = is_same(from, stat, to, &leads_to) && !is_link_in_the_way;
            if is_one || is_copy && is_link_to(from, stat, to, &there) {
                if self.options.form == Form::HardLink {
                    return true;
                }
                let (from, to) = (from.quoted(), to.quoted());
                self.session.complain(format_args!("{from} and {to} are the same file"));
                return false;
            }
            if self.is_kept(stat, to, &leads_to) {
                // Its other names become names of what is there.
                if has_links && self.options.update == Update::Older && !leads_to.is_dir() {
                    self.linked.entry(key).or_insert_with(|| to.clone());
                }
                return true;
            }
            if leads_to.is_dir() {
                let (from, to) = (from.quoted(), to.quoted());
                self.session.complain(format_args!(
                    "cannot overwrite directory {to} with non-directory {from}"
                ));
                return false;
            }
            if is_operand && self.has_made(to) {
                let (from, to) = (from.quoted(), to.quoted());
                self.session
                    .complain(format_args!("will not overwrite just-created {to} with {from}"));
                return false;
            }
        }
        // Of a file that is moved, the last name may be the only one by now.
        let linked = self.linked.get(&key).filter(|_| self.options.preserve.links).cloned();
        let copied = match linked {
            Some(first) => self.link(&first, to, there.is_some()),
            None if self.options.form != Form::Copy => self.other_form(from, to, there.is_some()),
            None => self.file(from, stat, to, there.as_ref(), is_operand),
        };
        if copied && has_links {
            self.linked.entry(key).or_insert_with(|| to.clone());
        }
        if copied && self.options.is_verbose {
            self.session.say(format_args!("{} -> {}", from.quoted(), to.quoted()));
        }
        copied
    }

    fn is_by_contents(&self, stat: &Stat) -> bool {
        use FileKind::{BlockDevice, CharDevice, Fifo, Regular};
        let is_special = matches!(stat.kind, Fifo | CharDevice | BlockDevice);
        self.options.form == Form::Copy && (stat.kind == Regular || is_special && !self.options.is_recursive)
    }

    /// Whether contents go to where a symbolic link leads. On the host, what a hostile image put
    /// there earlier, or another user, is replaced.
    fn writes_through(&self, to: &Place, is_operand: bool) -> bool {
        to.side.is_image() || (is_operand && self.options.follow == Follow::Yes)
    }

    /// What is replaced or written into: where a symbolic link leads. `None`: complained.
    fn leads_to(&self, stat: &Stat, to: &Place, there: &Stat, is_operand: bool) -> Option<Stat> {
        let is_through = self.is_by_contents(stat) && self.writes_through(to, is_operand);
        if !there.is_symlink() || !(is_through || self.options.follow == Follow::Yes) {
            return Some(*there);
        }
        match to.stat(Follow::Yes) {
            Ok(stat) => Some(stat),
            Err(error)
                if is_through && !self.is_replaced_after(&error) && error.raw_os_error() != Some(libc::ENOENT) =>
            {
                self.session.cannot("stat", to, &error);
                None
            }
            Err(_) => Some(*there),
        }
    }

    /// A link to itself cannot be opened, which `--force` is for.
    fn is_replaced_after(&self, error: &io::Error) -> bool {
        self.options.force && error.raw_os_error() == Some(libc::ELOOP)
    }

    fn link(&self, first: &Place, to: &Place, is_there: bool) -> bool {
        let link = |path: &Path| to.side.link(&first.path, path);
        match made_or_replaced(to, is_there, &link) {
            Ok(()) => true,
            Err(error) => {
                self.session.complain(format_args!(
                    "cannot create hard link {} to {}: {}",
                    to.quoted(),
                    first.quoted(),
                    reason(&error)
                ));
                false
            }
        }
    }

    /// A link in place of a copy. Both are on one side.
    fn other_form(&self, from: &Place, to: &Place, is_there: bool) -> bool {
        let make = |path: &Path| match self.options.form {
            _ if !from.is_on(to) => Err(io::Error::from_raw_os_error(libc::EXDEV)),
            Form::Symlink => to.side.make_symlink(from.path.as_os_str(), path),
            Form::HardLink | Form::Copy => {
                // The link is to what was found, not to a link that leads there.
                let original = match self.options.follow {
                    Follow::Yes => from.side.resolve(&from.path)?,
                    Follow::No => from.path.clone(),
                };
                to.side.link(&original, path)
            }
        };
        let is_relative = from.path.is_relative() && to.path.components().count() > 1;
        if self.options.form == Form::Symlink && from.is_on(to) && is_relative {
            self.session.complain(format_args!(
                "{}: can make relative symbolic links only in current directory",
                to.quoted()
            ));
            return false;
        }
        let made = made_or_replaced(to, is_there && self.options.force, &make);
        let Err(error) = made else { return true };
        let (from, to, why) = (from.quoted(), to.quoted(), reason(&error));
        match self.options.form {
            Form::Symlink => self
                .session
                .complain(format_args!("cannot create symbolic link {to} to {from}: {why}")),
            _ => self
                .session
                .complain(format_args!("cannot create hard link {to} to {from}: {why}")),
        }
        false
    }

    fn directory(&mut self, from: &Place, stat: &Stat, to: &Place) -> bool {
        if !self.options.is_recursive {
            self.session
                .complain(format_args!("-r not specified; omitting directory {}", from.quoted()));
            return false;
        }
        let id = (stat.dev, stat.ino);
        if self.within.contains(&id) {
            self.session
                .complain(format_args!("cannot copy cyclic symbolic link {}", from.quoted()));
            return false;
        }
        let is_new = match to.stat(Follow::No).ok() {
            Some(there) if there.is_dir() => false,
            Some(_) => {
                self.session.complain(format_args!(
                    "cannot overwrite non-directory {} with directory {}",
                    to.quoted(),
                    from.quoted()
                ));
                return false;
            }
            None => true,
        };
        if is_new {
            // Contents come before the final mode.
            if let Err(error) = to.side.make_dir(&to.path, (stat.perm & 0o1777) | 0o700) {
                self.session.cannot("create directory", to, &error);
                return false;
            }
            if self.options.is_verbose {
                self.session.say(format_args!("{} -> {}", from.quoted(), to.quoted()));
            }
        }
        let made = match to.stat(Follow::Yes) {
            Ok(made) => made,
            Err(error) => {
                self.session.cannot("stat", to, &error);
                return false;
            }
        };
        if is_new {
            self.made.push((to.side.identity(), made.dev, made.ino));
        }
        let is_elsewhere = self.options.one_file_system && stat.dev != self.start_dev;
        let names = match from.side.names(&from.path) {
            _ if is_elsewhere => Vec::new(),
            Ok(names) => names,
            Err(error) => {
                self.session.cannot("access", from, &error);
                return false;
            }
        };
        let mut is_well = true;
        self.within.push(id);
        for name in names {
            is_well &= self.child(from, to, &name);
        }
        self.within.pop();
        if self.options.preserve_any() {
            is_well &= self.attributes(from, stat, to);
        } else if is_new && stat.perm & 0o700 != 0o700 {
            let perm = made.perm & !(0o700 & !stat.perm);
            if let Err(error) = to.side.set_perm(&to.path, perm) {
                self.session.cannot("set permissions of", to, &error);
                is_well = false;
            }
        }
        is_well
    }

    fn child(&mut self, from: &Place, to: &Place, name: &OsString) -> bool {
        let (inner, target) = (from.join(name), to.join(name));
        match inner.stat(self.options.follow) {
            // The directory that this copy made.
            Ok(stat) if stat.is_dir() && self.made.contains(&(inner.side.identity(), stat.dev, stat.ino)) => true,
            Ok(stat) => self.entry(&inner, &stat, &target, false),
            Err(error) => {
                self.session.cannot("stat", &inner, &error);
                false
            }
        }
    }

    /// Anything but a directory, or a further name.
    fn file(&mut self, from: &Place, stat: &Stat, to: &Place, there: Option<&Stat>, is_operand: bool) -> bool {
        if self.is_by_contents(stat) {
            return self.contents(from, stat, to, there, is_operand) && self.attributes_if_asked(from, stat, to);
        }
        let make = |path: &Path| match stat.kind {
            FileKind::Symlink => to.side.make_symlink(&from.side.read_link(&from.path)?, path),
            kind => to.side.make_node(path, kind, stat.perm & 0o777, stat.device),
        };
        if let Err(error) = made_or_replaced(to, there.is_some(), &make) {
            let what = match stat.kind {
                FileKind::Symlink => "create symbolic link",
                FileKind::Fifo => "create fifo",
                _ => "create special file",
            };
            self.session.cannot(what, to, &error);
            return false;
        }
        self.attributes_if_asked(from, stat, to)
    }

    fn contents(&mut self, from: &Place, stat: &Stat, to: &Place, there: Option<&Stat>, is_operand: bool) -> bool {
        let source = match from.side.open(&from.path) {
            Ok(source) => source,
            Err(error) => {
                self.session.complain(format_args!(
                    "cannot open {} for reading: {}",
                    from.quoted(),
                    reason(&error)
                ));
                return false;
            }
        };
        let is_link = there.is_some_and(Stat::is_symlink);
        let leads_to = match is_link && self.writes_through(to, is_operand) {
            true => to.stat(Follow::Yes),
            false => there.copied().ok_or_else(|| io::ErrorKind::NotFound.into()),
        };
        let is_replaced = match &leads_to {
            // Hard links of the target are no copies of its contents.
            Ok(leads_to) if self.options.preserve.links && leads_to.nlink > 1 => true,
            Ok(leads_to) => leads_to.is_symlink(),
            Err(error) => self.is_replaced_after(error),
        };
        if is_link && !is_replaced && leads_to.is_err() {
            self.session
                .complain(format_args!("not writing through dangling symlink {}", to.quoted()));
            return false;
        }
        if is_replaced && let Err(error) = to.side.unlink(&to.path) {
            self.session.cannot("remove", to, &error);
            return false;
        }
        let is_over = there.is_some() && !is_replaced;
        let how = if is_over { Create::Over } else { Create::New };
        // A file that its owner may not write to takes no attributes. The final mode comes later.
        let perm = match self.options.preserve.mode {
            true => stat.perm & 0o777 | 0o200,
            false => stat.perm & 0o777,
        };
        let created = to.side.create(&to.path, how, perm);
        let created = match created {
            Err(_) if is_over && self.options.force => to
                .side
                .unlink(&to.path)
                .and_then(|()| to.side.create(&to.path, Create::New, perm)),
            other => other,
        };
        let sink = match created {
            Ok(sink) => sink,
            Err(error) => {
                self.session.cannot("create regular file", to, &error);
                return false;
            }
        };
        match self.data(from, stat, to, &*source, &*sink) {
            Ok(()) => true,
            Err(error) => {
                self.session.complain(format_args!(
                    "error copying {} to {}: {}",
                    from.quoted(),
                    to.quoted(),
                    reason(&error)
                ));
                false
            }
        }
    }

    fn data(&self, from: &Place, stat: &Stat, to: &Place, source: &dyn Source, sink: &dyn Sink) -> io::Result<()> {
        let is_file = stat.kind == FileKind::Regular && !source.is_stream();
        if from.is_on(to) && from.side.is_image() && is_file && self.options.reflink != When::Never {
            match to.side.clone_file(&from.path, &to.path) {
                Ok(()) => return Ok(()),
                Err(error) if self.options.reflink == When::Always => return Err(error),
                Err(_) => {}
            }
        } else if self.options.reflink == When::Always {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        copy_data(source, sink, stat.size_bytes, self.options.sparse)
    }

    fn attributes_if_asked(&self, from: &Place, stat: &Stat, to: &Place) -> bool {
        !self.options.preserve_any() || self.attributes(from, stat, to)
    }

    /// What is kept beside the contents; the times last.
    pub(super) fn attributes(&self, from: &Place, stat: &Stat, to: &Place) -> bool {
        let keep = self.options.preserve;
        let follow = match stat.is_symlink() {
            true => Follow::No,
            false => Follow::Yes,
        };
        let mut perm = stat.perm;
        let mut set = || -> io::Result<()> {
            if keep.owner
                && let Err(error) = to.side.set_owner(&to.path, Some(stat.uid), Some(stat.gid), follow)
            {
                // An ordinary user cannot give files away; the group may be one of its own.
                if error.raw_os_error() != Some(libc::EPERM) {
                    return Err(error);
                }
                let _ = to.side.set_owner(&to.path, None, Some(stat.gid), follow);
                perm &= !0o6000;
            }
            // Attributes before the mode, which may forbid the owner to write. Access lists after
            // it: they set the mode, too.
            let xattrs = self.xattrs(from, stat)?;
            let (lists, others): (Vec<_>, Vec<_>) = xattrs.iter().partition(|(name, _)| ACLS.contains(&&name[..]));
            set_xattrs(&others, to)?;
            if keep.mode && !stat.is_symlink() {
                to.side.set_perm(&to.path, perm)?;
            }
            set_xattrs(&lists, to)?;
            if keep.times {
                to.side
                    .set_times(&to.path, Some(stat.atime), Some(stat.mtime), follow)?;
            }
            Ok(())
        };
        match set() {
            Ok(()) => true,
            Err(error) => {
                self.session.complain(format_args!(
                    "failed to preserve attributes of {}: {}",
                    to.quoted(),
                    reason(&error)
                ));
                false
            }
        }
    }

    /// Those that are kept.
    fn xattrs(&self, from: &Place, stat: &Stat) -> io::Result<Vec<Xattr>> {
        let keep = self.options.preserve;
        if !keep.xattrs && (stat.is_symlink() || !keep.mode) {
            return Ok(Vec::new());
        }
        let mut found = from.side.xattrs(&from.path)?;
        found.retain(|(name, _)| match ACLS.contains(&&name[..]) {
            true => keep.mode,
            false => keep.xattrs,
        });
        Ok(found)
    }
}

/// Name and value.
type Xattr = (Vec<u8>, Vec<u8>);

fn set_xattrs(xattrs: &[&Xattr], to: &Place) -> io::Result<()> {
    for (name, value) in xattrs {
        match to.side.set_xattr(&to.path, name, value) {
            // What this user or this file system cannot set.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => {}
            done => done?,
        }
    }
    Ok(())
}

impl Options {
    pub(super) fn preserve_any(&self) -> bool {
        let keep = self.preserve;
        keep.mode || keep.owner || keep.times || keep.xattrs
    }
}

/// Makes `to` by a call that takes its path. Where something is there, it is replaced when the new
/// one exists: it stays where that cannot be made.
pub fn made_or_replaced(to: &Place, is_there: bool, make: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    if !is_there {
        return make(&to.path);
    }
    for nth in 0..TEMPORARY_NAMES {
        let beside = to.parent().join(format!(".cowshed-{}-{nth}", std::process::id()));
        match make(&beside) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
            made => made?,
        }
        let renamed = to.side.rename(&beside, &to.path);
        // It is still there after a failure, and where both are names of one file.
        let _ = to.side.unlink(&beside);
        return renamed;
    }
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Whether a symbolic link that is copied leads to the file that it would replace.
fn is_link_to(from: &Place, stat: &Stat, to: &Place, there: &Stat) -> bool {
    let leads_to = || from.stat(Follow::Yes);
    stat.is_symlink() && !there.is_symlink() && leads_to().is_ok_and(|leads_to| is_same(from, &leads_to, to, there))
}

fn is_same(from: &Place, stat: &Stat, to: &Place, there: &Stat) -> bool {
    from.is_on(to) && (stat.dev, stat.ino) == (there.dev, there.ino)
}

/// Copies contents; what is no data stays a hole unless `sparse` is never.
pub fn copy_data(source: &dyn Source, sink: &dyn Sink, size_bytes: u64, sparse: When) -> io::Result<()> {
    let mut buf = vec![0; STEP_BYTES];
    let mut at = 0;
    let mut end_of_data = 0;
    loop {
        if !source.is_stream() && sparse != When::Never && at >= end_of_data {
            match source.data_from(at)? {
                Some((start, stop)) => (at, end_of_data) = (start, stop),
                None => {
                    at = at.max(size_bytes);
                    break;
                }
            }
        }
        let room = match source.is_stream() || sparse == When::Never {
            true => buf.len(),
            false => usize::try_from(end_of_data - at).unwrap_or(buf.len()).min(buf.len()),
        };
        let got = source.read_at(at, &mut buf[..room])?;
        if got == 0 {
            break;
        }
        write_data(sink, at, &buf[..got], sparse)?;
        at += got as u64;
    }
    sink.set_len(at)
}

fn write_data(sink: &dyn Sink, at: u64, data: &[u8], sparse: When) -> io::Result<()> {
    if sparse != When::Always {
        return sink.write_at(at, data);
    }
    let mut at = at;
    for block in data.chunks(ZEROS_BYTES) {
        if block.iter().any(|byte| *byte != 0) {
            sink.write_at(at, block)?;
        }
        at += block.len() as u64;
    }
    Ok(())
}
