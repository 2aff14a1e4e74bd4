//! Which names of a listing come with attributes: docs/design/fuse-caches.md.
//!
//! Linux asks for all listings with attributes (READDIRPLUS), and a reply may leave them out, name
//! by name. With them a name takes three times as long to list, and nothing to look at afterwards;
//! without, a LOOKUP then. Which is better depends on the program, so that it is learnt for each
//! thread that lists:
//!
//! ```text
//!                 the sample is looked up
//!      Unknown ----------------------------> Looks  (all attributes)
//!      |     ^                               ^   |
//!      |     | the sample is not, twice      |   |
//!      |     +-------------------------------|---+
//!      | the sample is not                   |
//!      v                                     | names without attributes are looked up
//!    Lists  (attributes of directories) -----+
//! ```
//!
//! The *sample* is one file of a listing that comes without attributes, among others that have
//! them: Linux asks for it where a program looks at what it has listed. It counts as not looked up
//! when the thread begins with another directory.
//!
//! Linux remembers listings, those without attributes too. They are dropped there when names of
//! them are looked up ([`Listings::looked_up`]): the next program that lists them looks at more.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cowshed_vfs::{DirEntry, FileKind, NodeId};
use parking_lot::Mutex;

/// Threads that are known. The one that listed longest ago goes first.
const LISTERS_MAX: usize = 64;

/// The number of a thread that has not listed for so long may be another's.
const REMEMBERED: Duration = Duration::from_secs(10);

/// In the first listing of a thread the sample comes behind so many names: one that fits into one
/// reply has none, as the thread may list no other.
const LATE_SAMPLE: usize = 128;

/// One listing in so many has a sample once it is known that the thread looks at names.
const LISTINGS_BY_SAMPLE: u32 = 8;

/// Samples in a row that were not looked up, until that is not known any more.
const UNUSED_MAX: u32 = 2;

/// Names that were listed without attributes, looked up by one thread: then it looks at all.
const MISSED_MAX: u32 = 8;

/// Directories that are known to have been listed without attributes.
const BARE_MAX: usize = 1 << 16;

/// What a thread does with names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Habit {
    #[default]
    Unknown,
    Looks,
    Lists,
}

#[derive(Debug)]
struct Lister {
    habit: Habit,
    /// Listings begun.
    listings: u32,
    /// The directory with its sample, which was not looked up yet.
    sampled: Option<NodeId>,
    /// Samples in a row that were not looked up.
    unused: u32,
    missed: u32,
    seen: Instant,
}

impl Lister {
    fn new(now: Instant) -> Lister {
        Lister {
            habit: Habit::Unknown,
            listings: 0,
            sampled: None,
            unused: 0,
            missed: 0,
            seen: now,
        }
    }

    /// It looks at what it lists.
    fn looks(&mut self) {
        (self.habit, self.sampled, self.unused, self.missed) = (Habit::Looks, None, 0, 0);
    }

    /// It went on without a look at the sample.
    fn went_on(&mut self) {
        self.unused += 1;
        self.habit = match self.habit {
            Habit::Unknown | Habit::Lists => Habit::Lists,
            Habit::Looks if self.unused < UNUSED_MAX => Habit::Looks,
            Habit::Looks => Habit::Unknown,
        };
    }
}

#[derive(Debug)]
struct Sample {
    name: Vec<u8>,
    lister: u32,
}

#[derive(Debug, Default)]
struct State {
    listers: HashMap<u32, Lister>,
    /// By directory.
    samples: HashMap<NodeId, Sample>,
    /// Directories with files that were listed without attributes.
    bare: HashSet<NodeId>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Listings {
    state: Mutex<State>,
    /// There are samples, or directories that were listed without attributes.
    is_watching: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    All,
    /// All but one file behind so many names.
    AllBut(usize),
    Directories,
    Nothing,
}

/// Which names of one reply come with attributes.
#[derive(Debug)]
pub(super) struct Choice {
    dir: NodeId,
    lister: u32,
    begins: bool,
    with: With,
    names: usize,
    sample: Option<Vec<u8>>,
    has_left_out: bool,
}

impl Choice {
    /// Asked once for each name, in the order of the listing.
    pub fn wants(&mut self, entry: &DirEntry<'_>) -> bool {
        self.names += 1;
        let is_dir = entry.kind == FileKind::Directory;
        let wants = match self.with {
            With::All => true,
            With::AllBut(names) if is_dir || self.names <= names || self.sample.is_some() => true,
            With::AllBut(_) => {
                self.sample = Some(entry.name.to_vec());
                return false;
            }
            With::Directories => is_dir,
            With::Nothing => false,
        };
        self.has_left_out |= !wants && !is_dir;
        wants
    }
}

impl Listings {
    /// For a reply to a thread that lists a directory.
    pub fn choose(&self, lister: u32, dir: NodeId, begins: bool) -> Choice {
        let with = match lister {
            // Of another namespace: it may be any thread. As Linux would do.
            0 if begins => With::All,
            0 => With::Nothing,
            _ => self.state.lock().with(lister, begins, Instant::now()),
        };
        Choice {
            dir,
            lister,
            begins,
            with,
            names: 0,
            sample: None,
            has_left_out: false,
        }
    }

    /// The reply was made.
    pub fn made(&self, choice: Choice) {
        if choice.sample.is_none() && !choice.has_left_out && !choice.begins {
            return;
        }
        let mut state = self.state.lock();
        let Choice { dir, lister, .. } = choice;
        if choice.has_left_out {
            if state.bare.len() >= BARE_MAX {
                state.bare.clear();
            }
            state.bare.insert(dir);
        } else if choice.begins {
            state.bare.remove(&dir);
        }
        if let Some(name) = choice.sample
            && let Some(known) = state.listers.get_mut(&lister)
        {
            known.sampled = Some(dir);
            state.samples.insert(dir, Sample { name, lister });
        }
        self.watch(&state);
    }

    /// A file was looked up by its name. Returns directories whose listings are not to be remembered:
    /// they have no attributes, and are looked at.
    pub fn looked_up(&self, by: u32, dir: NodeId, name: &[u8]) -> HashSet<NodeId> {
        if !self.is_watching.load(Ordering::Relaxed) {
            return HashSet::new();
        }
        let mut state = self.state.lock();
        state.sample_looked_up(dir, name);
        let bare = state.missed(by, dir, Instant::now());
        self.watch(&state);
        bare
    }

    fn watch(&self, state: &State) {
        let is_watching = !state.samples.is_empty() || !state.bare.is_empty();
        self.is_watching.store(is_watching, Ordering::Relaxed);
    }
}

impl State {
    fn lister(&mut self, number: u32, now: Instant) -> &mut Lister {
        if let Some(known) = self.listers.get(&number)
            && now.duration_since(known.seen) > REMEMBERED
        {
            self.forget(number);
        }
        if !self.listers.contains_key(&number) && self.listers.len() >= LISTERS_MAX {
            let oldest = self.listers.iter().min_by_key(|(_, lister)| lister.seen);
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                self.forget(oldest);
            }
        }
        let lister = self.listers.entry(number).or_insert_with(|| Lister::new(now));
        lister.seen = now;
        lister
    }

    fn forget(&mut self, number: u32) {
        let lister = self.listers.remove(&number);
        if let Some(dir) = lister.and_then(|lister| lister.sampled) {
            self.end_sample(number, dir);
        }
    }

    /// False where it was looked up, or another thread has one there.
    fn end_sample(&mut self, lister: u32, dir: NodeId) -> bool {
        let is_there = self.samples.get(&dir).is_some_and(|sample| sample.lister == lister);
        is_there && self.samples.remove(&dir).is_some()
    }

    fn with(&mut self, number: u32, begins: bool, now: Instant) -> With {
        let lister = self.lister(number, now);
        let sampled = if begins { lister.sampled.take() } else { None };
        if sampled.is_some_and(|before| self.end_sample(number, before)) {
            self.lister(number, now).went_on();
        }
        let lister = self.lister(number, now);
        lister.listings += u32::from(begins);
        let is_first = lister.listings == 1;
        let has_sample = lister.listings.is_multiple_of(LISTINGS_BY_SAMPLE);
        match (lister.habit, begins) {
            (Habit::Unknown, true) if is_first => With::AllBut(LATE_SAMPLE),
            (Habit::Unknown, true) => With::AllBut(0),
            // It has not looked at the sample before it goes on: not while it lists.
            (Habit::Unknown, false) => With::Nothing,
            (Habit::Looks, true) if has_sample => With::AllBut(0),
            (Habit::Looks, _) => With::All,
            (Habit::Lists, _) => With::Directories,
        }
    }

    fn sample_looked_up(&mut self, dir: NodeId, name: &[u8]) {
        if self.samples.get(&dir).is_none_or(|sample| sample.name != name) {
            return;
        }
        let sample = self.samples.remove(&dir);
        // Also if another thread looked.
        let lister = sample.and_then(|sample| self.listers.get_mut(&sample.lister));
        if let Some(lister) = lister {
            lister.looks();
        }
    }

    fn missed(&mut self, by: u32, dir: NodeId, now: Instant) -> HashSet<NodeId> {
        if by == 0 || !self.bare.contains(&dir) {
            return HashSet::new();
        }
        let lister = self.lister(by, now);
        lister.missed += 1;
        if lister.missed < MISSED_MAX {
            return HashSet::new();
        }
        if let Some(sampled) = lister.sampled {
            self.end_sample(by, sampled);
        }
        self.lister(by, now).looks();
        std::mem::take(&mut self.bare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u32 = 7;

    fn dir(number: u64) -> NodeId {
        NodeId(1000 + number)
    }

    /// Lists so many files and one directory in pieces of 200 names. Returns the files without
    /// attributes.
    fn listed(listings: &Listings, by: u32, number: u64, files: usize) -> Vec<String> {
        let mut all: Vec<_> = (0..files).map(|n| (format!("f{n}"), FileKind::Regular)).collect();
        all.insert(0, ("d".into(), FileKind::Directory));
        let mut bare = Vec::new();
        for (n, piece) in all.chunks(200).enumerate() {
            let mut choice = listings.choose(by, dir(number), n == 0);
            for (name, kind) in piece {
                let entry = DirEntry {
                    name: name.as_bytes(),
                    ino: 1,
                    kind: *kind,
                    cookie: 1,
                };
                if !choice.wants(&entry) && *kind != FileKind::Directory {
                    bare.push(name.clone());
                }
            }
            listings.made(choice);
        }
        bare
    }

    fn look(listings: &Listings, by: u32, number: u64, names: &[String]) -> usize {
        let dropped = names
            .iter()
            .map(|name| listings.looked_up(by, dir(number), name.as_bytes()).len());
        dropped.sum()
    }

    #[test]
    fn small_directory_that_is_listed_alone_has_all_attributes() {
        let listings = Listings::default();
        assert_eq!(listed(&listings, THREAD, 0, 100), [""; 0]);
        assert!(!listings.is_watching.load(Ordering::Relaxed), "nothing to wait for");
    }

    #[test]
    fn thread_that_looks_at_names_gets_all_attributes_but_samples() {
        let listings = Listings::default();
        listed(&listings, THREAD, 0, 10);
        for number in 1..100 {
            let bare = listed(&listings, THREAD, number, 1000);
            match (number, (number + 1) % u64::from(LISTINGS_BY_SAMPLE)) {
                // The sample, and what comes in later replies: it was not looked up in between.
                (1, _) => assert_eq!(bare.len(), 1 + 801),
                (_, 0) => assert_eq!(bare, ["f0"], "{number}"),
                _ => assert_eq!(bare, [""; 0], "{number}"),
            }
            look(&listings, THREAD, number, &bare);
        }
        assert!(!listings.is_watching.load(Ordering::Relaxed));
    }

    #[test]
    fn thread_that_looks_while_it_lists_gets_all_attributes_of_the_first_directory() {
        let listings = Listings::default();
        let mut choice = listings.choose(THREAD, dir(0), true);
        let mut bare = Vec::new();
        for n in 0..200 {
            let name = format!("f{n}");
            let entry = DirEntry {
                name: name.as_bytes(),
                ino: 1,
                kind: FileKind::Regular,
                cookie: 1,
            };
            if !choice.wants(&entry) {
                bare.push(name);
            }
        }
        listings.made(choice);
        assert_eq!(bare, [format!("f{LATE_SAMPLE}")]);
        look(&listings, THREAD, 0, &bare);
        assert_eq!(listings.choose(THREAD, dir(0), false).with, With::All);
    }

    #[test]
    fn thread_that_only_lists_gets_attributes_of_directories_alone() {
        let listings = Listings::default();
        listed(&listings, THREAD, 0, 10);
        assert_eq!(listed(&listings, THREAD, 1, 10), ["f0"]);
        for number in 2..100 {
            assert_eq!(listed(&listings, THREAD, number, 10).len(), 10);
        }
        // Another one is another matter.
        assert_eq!(listed(&listings, THREAD + 1, 200, 10), [""; 0]);
    }

    #[test]
    fn listings_without_attributes_are_dropped_when_they_are_looked_at() {
        let listings = Listings::default();
        for number in 0..50 {
            listed(&listings, THREAD, number, 3);
        }
        let files = ["f0", "f1", "f2"].map(String::from);
        // Linux lists them from its memory.
        let looker = THREAD + 1;
        let of_each: Vec<_> = (10..20).map(|number| look(&listings, looker, number, &files)).collect();
        assert_eq!(of_each[..2], [0, 0]);
        assert_eq!(of_each[2], 48, "all but the first two");
        assert_eq!(of_each[3..], [0; 7]);
        assert_eq!(listed(&listings, looker, 10, 3), [""; 0], "all attributes from now on");
        look(&listings, THREAD, 10, &files);
        assert_eq!(listed(&listings, THREAD, 11, 3).len(), 3, "a look is not a habit");
    }

    #[test]
    fn habits_change() {
        let listings = Listings::default();
        listed(&listings, THREAD, 0, 10);
        let bare = listed(&listings, THREAD, 1, 10);
        look(&listings, THREAD, 1, &bare);
        let habit = || listings.state.lock().listers[&THREAD].habit;
        assert_eq!(habit(), Habit::Looks);
        let until = |wanted: Habit, from: u64| {
            let mut number = from;
            while habit() != wanted {
                listed(&listings, THREAD, number, 10);
                number += 1;
                assert!(number < from + 100, "{:?}", habit());
            }
            number - from
        };
        assert!(until(Habit::Unknown, 100) > u64::from(LISTINGS_BY_SAMPLE));
        assert!(until(Habit::Lists, 200) <= 2);
        for number in 300..303 {
            let bare = listed(&listings, THREAD, number, 10);
            look(&listings, THREAD, number, &bare);
        }
        assert_eq!(habit(), Habit::Looks);
    }

    #[test]
    fn what_is_known_is_bounded_and_ends() {
        let listings = Listings::default();
        let threads = 1..1000;
        for by in threads.clone() {
            (0..4).for_each(|n| drop(listed(&listings, by, 10 * u64::from(by) + n, 2)));
        }
        {
            let mut state = listings.state.lock();
            assert_eq!(state.listers.len(), LISTERS_MAX);
            assert!(state.samples.len() <= LISTERS_MAX);
            state.bare.extend((0..BARE_MAX as u64).map(dir));
        }
        (0..10).for_each(|n| drop(listed(&listings, THREAD, 1 << 40 | n, 2)));
        let mut state = listings.state.lock();
        assert!(state.bare.len() < 10);
        let now = Instant::now();
        assert_eq!(state.lister(THREAD, now).habit, Habit::Lists);
        let later = now + REMEMBERED + Duration::from_secs(1);
        assert_eq!(state.lister(THREAD, later).habit, Habit::Unknown);
    }
}
