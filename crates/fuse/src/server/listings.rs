//! Which names of a listing come with attributes: docs/design/fuse-caches.md.
//!
//! Linux asks for all listings with attributes (READDIRPLUS), and a reply may leave them out, name
//! by name. A name with attributes takes three times as long to list, and stat() of it needs no
//! request then. A name without them takes a LOOKUP when it is used. Which is better depends on the
//! program, so that it is learnt for each thread that lists:
//!
//! ```text
//!                the sample is looked up, or eight names without attributes
//!      Unknown ------------------------------------------------------------> Looks
//!      |     ^                                                               ^   |
//!      |     |        two samples in a row are not looked up                 |   |
//!      |     +---------------------------------------------------------------|---+
//!      | the sample is not looked up                                         |
//!      v                         eight names without attributes are looked up|
//!    Lists ------------------------------------------------------------------+
//! ```
//!
//! - `Looks`: all names come with attributes.
//! - `Lists`: those of directories do, as a program that walks over a tree opens them.
//! - The *sample* is one file of a listing that comes without attributes, among others that have
//!   them: Linux asks for it where a program looks at what it has listed. It counts as not looked
//!   up when the thread begins with another directory.
//! - A directory is *bare* if files in it were listed without attributes. Linux remembers such a
//!   listing as any other. It is dropped there when names are looked up that were listed so: the
//!   next program that lists the directory sends requests again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cowshed_vfs::{DirEntry, FileKind, NodeId};
use parking_lot::Mutex;

/// Threads that are known. The one that was seen longest ago goes first.
const LISTERS_MAX: usize = 64;

/// The number of a thread that was not seen for so long may be another's.
const REMEMBERED: Duration = Duration::from_secs(10);

/// In the first reply to a thread the sample comes behind so many names: the thread may list no
/// other directory, and most directories are smaller.
const LATE_SAMPLE: usize = 128;

/// One listing in so many has a sample once it is known that the thread looks at names.
const LISTINGS_BY_SAMPLE: u32 = 8;

/// Samples in a row that were not looked up, until that is not known any more.
const UNUSED_MAX: u32 = 2;

/// Names that were listed without attributes, looked up by one thread: then it looks at all.
const MISSED_MAX: u32 = 8;

/// Bare directories that are known.
const BARE_MAX: usize = 1 << 16;

/// Listings that are dropped at once: each takes some microseconds of a thread for which others
/// wait.
const DROPPED_AT_ONCE: usize = 1024;

/// What a thread does with the names that it lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Unknown,
    Looks,
    Lists,
}

#[derive(Debug)]
struct Lister {
    behaviour: Behaviour,
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
            behaviour: Behaviour::Unknown,
            listings: 0,
            sampled: None,
            unused: 0,
            missed: 0,
            seen: now,
        }
    }

    /// It looks at what it lists.
    fn looks(&mut self) {
        (self.behaviour, self.sampled, self.unused, self.missed) = (Behaviour::Looks, None, 0, 0);
    }

    /// It began with another directory, and its sample was not looked up.
    fn passed_sample(&mut self) {
        self.unused += 1;
        self.behaviour = match self.behaviour {
            Behaviour::Unknown | Behaviour::Lists => Behaviour::Lists,
            Behaviour::Looks if self.unused < UNUSED_MAX => Behaviour::Looks,
            Behaviour::Looks => Behaviour::Unknown,
        };
    }
}

#[derive(Debug)]
struct Sample {
    name: Vec<u8>,
    lister: u32,
}

/// A directory with files that were listed without attributes.
#[derive(Debug)]
struct Bare {
    /// The last thread that listed it.
    lister: u32,
    /// To the end. Linux could not remember a listing that is dropped in the middle, until it
    /// forgets the directory.
    is_whole: bool,
}

#[derive(Debug, Default)]
struct State {
    listers: HashMap<u32, Lister>,
    samples: HashMap<NodeId, Sample>,
    bare: HashMap<NodeId, Bare>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Listings {
    state: Mutex<State>,
    /// There are samples or bare directories.
    is_watching: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    All,
    /// All but one file behind so many names.
    AllBut(usize),
    Directories,
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
        };
        self.has_left_out |= !wants;
        wants
    }
}

impl Listings {
    /// For a reply to a thread that lists a directory. Threads without a number, those of other
    /// namespaces, count as one.
    pub fn choose(&self, lister: u32, dir: NodeId, begins: bool) -> Choice {
        Choice {
            dir,
            lister,
            begins,
            with: self.state.lock().with(lister, begins, Instant::now()),
            names: 0,
            sample: None,
            has_left_out: false,
        }
    }

    /// The reply was made. Returns as [`Listings::looked_up`].
    pub fn made(&self, choice: Choice) -> Vec<NodeId> {
        let mut state = self.state.lock();
        let Choice { dir, lister, .. } = choice;
        let mut dropped = Vec::new();
        if choice.has_left_out {
            if state.bare.len() >= BARE_MAX {
                dropped = state.take_bare();
            }
            let is_whole = false;
            state.bare.insert(dir, Bare { lister, is_whole });
        } else if choice.begins {
            state.bare.remove(&dir);
        } else if choice.names == 0
            && let Some(bare) = state.bare.get_mut(&dir)
        {
            bare.is_whole = true;
        }
        if let Some(name) = choice.sample
            && let Some(known) = state.listers.get_mut(&lister)
        {
            known.sampled = Some(dir);
            state.samples.insert(dir, Sample { name, lister });
        }
        self.watch(&state);
        dropped
    }

    /// A file was looked up by its name. Returns directories whose listings Linux is to forget.
    pub fn looked_up(&self, by: u32, dir: NodeId, name: &[u8]) -> Vec<NodeId> {
        if !self.is_watching.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        state.sample_looked_up(dir, name);
        let dropped = state.missed(by, dir, Instant::now());
        self.watch(&state);
        dropped
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
            self.lister(number, now).passed_sample();
        }
        let lister = self.lister(number, now);
        lister.listings += u32::from(begins);
        let is_first = lister.listings == 1;
        let has_sample = lister.listings.is_multiple_of(LISTINGS_BY_SAMPLE);
        match (lister.behaviour, begins) {
            (Behaviour::Unknown, true) if is_first => With::AllBut(LATE_SAMPLE),
            (Behaviour::Unknown, true) => With::AllBut(0),
            // It goes on, and has not looked at the sample: not while it lists.
            (Behaviour::Unknown, false) if lister.sampled.is_some() => With::Directories,
            (Behaviour::Unknown, false) => With::AllBut(0),
            (Behaviour::Looks, true) if has_sample => With::AllBut(0),
            (Behaviour::Looks, _) => With::All,
            (Behaviour::Lists, _) => With::Directories,
        }
    }

    fn looks(&mut self, number: u32) {
        let Some(lister) = self.listers.get_mut(&number) else {
            return;
        };
        let sampled = lister.sampled;
        lister.looks();
        if let Some(sampled) = sampled {
            self.end_sample(number, sampled);
        }
    }

    fn sample_looked_up(&mut self, dir: NodeId, name: &[u8]) {
        // Also where another thread looks.
        let sample = self.samples.get(&dir).filter(|sample| sample.name == name);
        if let Some(lister) = sample.map(|sample| sample.lister) {
            self.looks(lister);
        }
    }

    fn missed(&mut self, by: u32, dir: NodeId, now: Instant) -> Vec<NodeId> {
        let Some(listed_by) = self.bare.get(&dir).map(|bare| bare.lister) else {
            return Vec::new();
        };
        let lister = self.lister(by, now);
        lister.missed += 1;
        if lister.missed < MISSED_MAX {
            return Vec::new();
        }
        self.looks(by);
        // It may list for the one that looks.
        self.looks(listed_by);
        self.take_bare()
    }

    /// Some that were listed to the end.
    fn take_bare(&mut self) -> Vec<NodeId> {
        let whole = self.bare.iter().filter(|(_, bare)| bare.is_whole);
        let some: Vec<_> = whole.map(|(dir, _)| *dir).take(DROPPED_AT_ONCE).collect();
        for dir in &some {
            self.bare.remove(dir);
        }
        if self.bare.len() >= BARE_MAX {
            // Most were not read to the end.
            self.bare.clear();
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u32 = 7;

    fn dir(number: u64) -> NodeId {
        NodeId(1000 + number)
    }

    fn entry<'a>(name: &'a str, kind: FileKind) -> DirEntry<'a> {
        DirEntry {
            name: name.as_bytes(),
            ino: 1,
            kind,
            cookie: 1,
        }
    }

    /// Lists one directory and so many files in pieces of so many names, to the end. Returns the
    /// names without attributes.
    fn listed_by(listings: &Listings, by: u32, number: u64, files: usize, piece: usize) -> Vec<String> {
        let mut all: Vec<_> = (0..files).map(|n| (format!("f{n}"), FileKind::Regular)).collect();
        all.insert(0, ("d".into(), FileKind::Directory));
        let mut left_out = Vec::new();
        let end: &[(String, FileKind)] = &[];
        for (n, piece) in all.chunks(piece).chain([end]).enumerate() {
            let mut choice = listings.choose(by, dir(number), n == 0);
            for (name, kind) in piece {
                if !choice.wants(&entry(name, *kind)) {
                    left_out.push(name.clone());
                }
            }
            assert_eq!(listings.made(choice), []);
        }
        left_out
    }

    fn listed(listings: &Listings, by: u32, number: u64, files: usize) -> Vec<String> {
        listed_by(listings, by, number, files, 200)
    }

    /// Looks names up. Returns how many listings are dropped for it.
    fn look(listings: &Listings, by: u32, number: u64, names: &[String]) -> usize {
        let dropped = names
            .iter()
            .map(|name| listings.looked_up(by, dir(number), name.as_bytes()).len());
        dropped.sum()
    }

    fn behaviour(listings: &Listings, by: u32) -> Behaviour {
        listings.state.lock().listers[&by].behaviour
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
            let left_out = listed(&listings, THREAD, number, 1000);
            match (number, (number + 1) % u64::from(LISTINGS_BY_SAMPLE)) {
                // The sample, and what comes in later replies: it was not looked up in between.
                (1, _) => assert_eq!(left_out.len(), 1 + 801),
                (_, 0) => assert_eq!(left_out, ["f0"], "{number}"),
                _ => assert_eq!(left_out, [""; 0], "{number}"),
            }
            look(&listings, THREAD, number, &left_out);
        }
        assert!(!listings.is_watching.load(Ordering::Relaxed));
    }

    /// Also by a program whose buffer for names is small.
    #[test]
    fn thread_that_looks_while_it_lists_gets_all_attributes_of_the_first_directory() {
        for piece in [25, 200] {
            let listings = Listings::default();
            let names: Vec<_> = (0..400).map(|n| format!("f{n}")).collect();
            let mut left_out = Vec::new();
            for (n, piece) in names.chunks(piece).enumerate() {
                let mut choice = listings.choose(THREAD, dir(0), n == 0);
                let wanted = piece
                    .iter()
                    .filter(|name| !choice.wants(&entry(name, FileKind::Regular)));
                let of_piece: Vec<_> = wanted.cloned().collect();
                listings.made(choice);
                look(&listings, THREAD, 0, &of_piece);
                left_out.extend(of_piece);
            }
            let sample = if piece < LATE_SAMPLE { piece } else { LATE_SAMPLE };
            assert_eq!(left_out, [format!("f{sample}")]);
        }
    }

    #[test]
    fn thread_that_only_lists_gets_attributes_of_directories_alone() {
        // A thread without a number is one like others.
        for by in [0, THREAD] {
            let listings = Listings::default();
            listed(&listings, by, 0, 10);
            assert_eq!(listed(&listings, by, 1, 10), ["f0"]);
            for number in 2..100 {
                assert_eq!(listed(&listings, by, number, 10).len(), 10);
            }
            assert_eq!(listed(&listings, by + 1, 200, 10), [""; 0], "not so another one");
        }
    }

    #[test]
    fn directories_have_attributes_in_every_reply() {
        let listings = Listings::default();
        for begins in [true, false, false] {
            let mut choice = listings.choose(THREAD, dir(0), begins);
            assert!((0..300).all(|n| choice.wants(&entry(&format!("d{n}"), FileKind::Directory))));
            listings.made(choice);
        }
        assert!(!listings.is_watching.load(Ordering::Relaxed));
    }

    #[test]
    fn bare_listings_are_dropped_and_their_lister_gets_attributes_when_another_thread_looks() {
        let listings = Listings::default();
        for number in 0..50 {
            listed(&listings, THREAD, number, 3);
        }
        // One that is not read to the end.
        let mut choice = listings.choose(THREAD, dir(60), true);
        assert!(!choice.wants(&entry("f0", FileKind::Regular)));
        listings.made(choice);
        assert_eq!(behaviour(&listings, THREAD), Behaviour::Lists);
        let files = ["f0", "f1", "f2"].map(String::from);
        // Linux lists them from its memory.
        let looker = THREAD + 1;
        let of_each: Vec<_> = (10..20).map(|number| look(&listings, looker, number, &files)).collect();
        assert_eq!(of_each[..2], [0, 0]);
        assert_eq!(of_each[2], 48, "all but the first two and the last");
        assert_eq!(of_each[3..], [0; 7]);
        assert_eq!(
            [looker, THREAD].map(|by| behaviour(&listings, by)),
            [Behaviour::Looks; 2]
        );
        assert_eq!(listed(&listings, looker, 10, 3), [""; 0], "all attributes from now on");
    }

    #[test]
    fn few_looks_change_nothing() {
        let listings = Listings::default();
        for number in 0..5 {
            listed(&listings, THREAD, number, 10);
        }
        let files = ["f0", "f1", "f2"].map(String::from);
        assert_eq!(look(&listings, THREAD, 4, &files), 0);
        assert_eq!(listed(&listings, THREAD, 5, 10).len(), 10);
    }

    #[test]
    fn thread_that_looks_no_longer_is_noticed() {
        let listings = Listings::default();
        listed(&listings, THREAD, 0, 10);
        let left_out = listed(&listings, THREAD, 1, 10);
        look(&listings, THREAD, 1, &left_out);
        assert_eq!(behaviour(&listings, THREAD), Behaviour::Looks);
        let until = |wanted: Behaviour, from: u64| {
            let mut number = from;
            while behaviour(&listings, THREAD) != wanted {
                listed(&listings, THREAD, number, 10);
                number += 1;
                assert!(number < from + 100, "{:?}", behaviour(&listings, THREAD));
            }
            number - from
        };
        assert!(until(Behaviour::Unknown, 100) > u64::from(LISTINGS_BY_SAMPLE));
        assert!(until(Behaviour::Lists, 200) <= 2);
        for number in 300..303 {
            let left_out = listed(&listings, THREAD, number, 10);
            look(&listings, THREAD, number, &left_out);
        }
        assert_eq!(behaviour(&listings, THREAD), Behaviour::Looks);
    }

    #[test]
    fn threads_beyond_the_bound_and_those_that_rest_are_forgotten() {
        let listings = Listings::default();
        for by in 1..1000 {
            (0..4).for_each(|n| drop(listed(&listings, by, 10 * u64::from(by) + n, 2)));
        }
        let mut state = listings.state.lock();
        assert_eq!(state.listers.len(), LISTERS_MAX);
        assert!(state.samples.len() <= LISTERS_MAX);
        let now = Instant::now();
        assert_eq!(state.lister(999, now).behaviour, Behaviour::Lists);
        let later = now + REMEMBERED + Duration::from_secs(1);
        assert_eq!(state.lister(999, later).behaviour, Behaviour::Unknown);
    }

    /// Linux remembers their listings still.
    #[test]
    fn bare_directories_beyond_the_bound_are_dropped() {
        let listings = Listings::default();
        (0..3).for_each(|number| drop(listed(&listings, THREAD, number, 3)));
        for is_whole in [true, false] {
            let mut state = listings.state.lock();
            let many = (0..BARE_MAX as u64).map(|n| (dir(1000 + n), Bare { lister: 1, is_whole }));
            state.bare.extend(many);
            drop(state);
            let mut choice = listings.choose(THREAD, dir(3), true);
            assert!(!choice.wants(&entry("f0", FileKind::Regular)));
            let dropped = listings.made(choice).len();
            assert!(dropped == DROPPED_AT_ONCE || !is_whole && dropped < 3, "{dropped}");
            assert!(listings.state.lock().bare.len() <= BARE_MAX, "{is_whole}");
        }
    }
}
