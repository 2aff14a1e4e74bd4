//! `cp --parents`: the directories above what is copied.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use super::copy::Copier;
use super::session::{Place, reason};
use super::side::{Follow, Stat};

/// A directory above what is copied.
pub struct Parent {
    original: Place,
    /// The original when the copy was made: it may lie in a copy that was made before.
    stat: Stat,
    to: Place,
}

impl Copier<'_> {
    /// Makes the directories of `from`'s path below `dir`; gives those that were made, and where
    /// attributes are kept those above them, too, outermost first, and the name for the copy itself.
    /// `None`: complained.
    pub fn make_parents(&self, from: &Place, dir: &Place) -> Option<(Vec<Parent>, Place)> {
        let names: Vec<&OsStr> = from.path.iter().filter(|name| *name != "/" && *name != ".").collect();
        let (last, parents) = names.split_last()?;
        // Where none is to be made, none is changed either.
        let whole = parents.iter().fold(dir.clone(), |to, name| to.join(name));
        if whole.stat(Follow::Yes).is_ok_and(|there| there.is_dir()) {
            return Some((Vec::new(), whole.join(last)));
        }
        let root = match from.path.is_absolute() {
            true => PathBuf::from("/"),
            false => PathBuf::new(),
        };
        let (mut source, mut to) = (root, dir.clone());
        let mut made = Vec::new();
        for name in parents {
            source.push(name);
            to = to.join(name);
            let original = Place {
                side: from.side.clone(),
                path: source.clone(),
                shown: source.clone().into_os_string(),
            };
            let is_there = to.stat(Follow::Yes).is_ok_and(|there| there.is_dir());
            if is_there && !self.options.preserve_any() {
                continue;
            }
            let stat = self.parent_stat(&original)?;
            if !is_there {
                self.make_parent(&original, &stat, &to)?;
            }
            made.push(Parent {
                original,
                stat,
                to: to.clone(),
            });
        }
        Some((made, to.join(last)))
    }

    fn parent_stat(&self, original: &Place) -> Option<Stat> {
        let error = match original.stat(Follow::Yes) {
            Ok(stat) if stat.is_dir() => return Some(stat),
            Ok(_) => io::Error::from_raw_os_error(libc::ENOTDIR),
            Err(error) => error,
        };
        self.session.complain(format_args!(
            "failed to get attributes of {}: {}",
            original.quoted(),
            reason(&error)
        ));
        None
    }

    fn make_parent(&self, original: &Place, stat: &Stat, to: &Place) -> Option<()> {
        if to.stat(Follow::Yes).is_ok() {
            self.session
                .complain(format_args!("{} exists but is not a directory", to.quoted()));
            return None;
        }
        let keep = self.options.preserve;
        // Only its owner enters it until it has the owner of the original.
        let perm = match keep.owner && keep.mode {
            true => stat.perm & 0o1700,
            false => stat.perm & 0o1777,
        };
        if let Err(error) = to.side.make_dir(&to.path, perm | 0o700) {
            self.session.complain(format_args!(
                "cannot make directory {}: {}",
                to.quoted(),
                reason(&error)
            ));
            return None;
        }
        if self.options.is_verbose {
            self.session
                .say(format_args!("{} -> {}", original.quoted(), to.quoted()));
        }
        Some(())
    }

    /// Gives directories that [`Copier::make_parents`] made what is kept of the originals.
    pub fn finish_parents(&self, made: &[Parent]) {
        for Parent { original, stat, to } in made.iter().rev() {
            let there = match to.stat(Follow::Yes) {
                Ok(there) => there,
                Err(error) => {
                    self.session.cannot("stat", to, &error);
                    continue;
                }
            };
            let perm = there.perm & !(0o700 & !stat.perm);
            if self.options.preserve_any() {
                self.attributes(original, stat, to);
            } else if perm != there.perm
                && let Err(error) = to.side.set_perm(&to.path, perm)
            {
                self.session.cannot("set permissions of", to, &error);
            }
        }
    }
}
