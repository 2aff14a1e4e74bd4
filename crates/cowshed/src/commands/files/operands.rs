//! What cp, mv and ln make of their operands: the names that these get, and what must not be
//! overwritten.

use std::collections::HashSet;
use std::io;

use super::session::{Entry, Place, Session, reason};
use super::side::{Follow, Stat};

/// The files that the operands of a command became: another operand does not replace them.
#[derive(Default)]
pub struct Made(HashSet<(Entry, u64, u64)>);

impl Made {
    fn key(place: &Place) -> Option<(Entry, u64, u64)> {
        let stat = place.stat(Follow::No).ok().filter(|stat| !stat.is_dir())?;
        Some((place.entry()?, stat.dev, stat.ino))
    }

    pub fn note(&mut self, place: &Place) {
        self.0.extend(Self::key(place));
    }

    pub fn contains(&self, place: &Place) -> bool {
        !self.0.is_empty() && Self::key(place).is_some_and(|key| self.0.contains(&key))
    }
}

/// Where a copy or move of operands goes.
pub enum Target {
    /// Into a directory, under each operand's name.
    Into(Place),
    /// To this name.
    At(Place),
}

/// What cp, mv and ln make of their last operand. `None`: complained.
pub fn target(session: &Session<'_>, to: Place, operands: usize, is_into: bool, is_name: bool) -> Option<Target> {
    let stat = to.stat(Follow::Yes);
    let is_dir = stat.as_ref().is_ok_and(Stat::is_dir);
    if is_name {
        if operands > 1 {
            session.complain(format_args!("extra operand {}", to.quoted()));
            return None;
        }
        return Some(Target::At(to));
    }
    if is_dir {
        return Some(Target::Into(to));
    }
    if is_into || operands > 1 {
        let why = match stat {
            Ok(_) => io::Error::from_raw_os_error(libc::ENOTDIR),
            Err(error) => error,
        };
        session.complain(format_args!("target {}: {}", to.quoted(), reason(&why)));
        return None;
    }
    Some(Target::At(to))
}

/// The name that an operand gets below a target.
pub fn named(target: &Target, from: &Place) -> Place {
    match target {
        Target::At(to) => to.clone(),
        // `dir/.` copies what is in it.
        Target::Into(dir) => match from.name() {
            name if name.is_empty() || name == ".." => dir.clone(),
            name => dir.join(&name),
        },
    }
}
