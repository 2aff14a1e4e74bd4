//! Lists that may outgrow memory. What exceeds the bound goes to a temporary file, which has no
//! name and goes with the check. Where no such file can be made, or a write to it fails, all that
//! follows stays in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a list can hold.
pub(crate) trait Item: FromBytes + IntoBytes + Immutable + Copy {}
impl<T: FromBytes + IntoBytes + Immutable + Copy> Item for T {}

/// Items that are read back at once.
const PIECE_ITEMS: usize = 1 << 15;

/// The bound that all lists share, and the file. Lock: the end of the file, held while a list is
/// appended to it.
pub(crate) struct Spill {
    bytes_max: usize,
    held_bytes: AtomicUsize,
    /// `None`: no list was written yet. `Some(None)`: there is no file.
    file: Mutex<Option<Option<Temporary>>>,
}

struct Temporary {
    file: File,
    end: u64,
    /// A write failed: there are no more.
    is_full: bool,
}

impl Spill {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            held_bytes: AtomicUsize::new(0),
            file: Mutex::new(None),
        }
    }

    /// Appends to the file; where it begins there. `None` where there is no file.
    fn write(&self, bytes: &[u8]) -> Option<u64> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let file = tempfile::tempfile().ok()?;
            Some(Temporary {
                file,
                end: 0,
                is_full: false,
            })
        };
        let file = file.get_or_insert_with(make).as_mut().filter(|file| !file.is_full)?;
        let at = file.end;
        if file.file.write_all_at(bytes, at).is_err() {
            // A full disk, say. What was written before stays readable; the part behind it goes, so
            // that it does not keep the disk full. To try again with each item would write more and
            // more.
            file.is_full = true;
            let _ = file.file.set_len(at);
            return None;
        }
        file.end = at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Some(at)
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        match file.as_ref() {
            Some(Some(file)) => file.file.read_exact_at(bytes, at),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Bytes that were written to the file.
    #[cfg(test)]
    pub(crate) fn written_bytes(&self) -> u64 {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_ref().and_then(Option::as_ref).map_or(0, |file| file.end)
    }
}

/// A list.
#[derive(Debug)]
pub(crate) struct Pile<T> {
    /// Parts in the file: where they begin, and their items.
    parts: Vec<(u64, usize)>,
    tail: Vec<T>,
}

impl<T> Default for Pile<T> {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            tail: Vec::new(),
        }
    }
}

impl<T: Item> Pile<T> {
    pub(crate) fn extend(&mut self, spill: &Spill, items: &[T]) {
        self.tail.extend_from_slice(items);
        let held = spill.held_bytes.fetch_add(size_of_val(items), Ordering::Relaxed);
        if held.saturating_add(size_of_val(items)) <= spill.bytes_max {
            return;
        }
        let bytes = size_of_val(&*self.tail);
        if let Some(at) = spill.write(self.tail.as_bytes()) {
            self.parts.push((at, self.tail.len()));
            self.tail = Vec::new();
            spill.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Visits the items in the order in which they came, some at a time.
    pub(crate) fn each(&self, spill: &Spill, visit: &mut dyn FnMut(&[T])) -> io::Result<()> {
        for (start, items) in &self.parts {
            let (mut at, mut left) = (*start, *items);
            while left > 0 {
                let now = left.min(PIECE_ITEMS);
                let mut piece = vec![T::new_zeroed(); now];
                spill.read(piece.as_mut_slice().as_mut_bytes(), at)?;
                visit(&piece);
                left = left.saturating_sub(now);
                at = at.saturating_add(u64::try_from(size_of_val(&*piece)).unwrap_or(u64::MAX));
            }
        }
        visit(&self.tail);
        Ok(())
    }

    /// All items at once; the list is empty afterwards.
    pub(crate) fn take(&mut self, spill: &Spill) -> io::Result<Vec<T>> {
        if self.parts.is_empty() {
            let all = std::mem::take(&mut self.tail);
            spill.held_bytes.fetch_sub(size_of_val(&*all), Ordering::Relaxed);
            return Ok(all);
        }
        let items = self.parts.iter().map(|(_, items)| *items).sum::<usize>();
        let mut all = Vec::with_capacity(items.saturating_add(self.tail.len()));
        self.each(spill, &mut |piece| all.extend_from_slice(piece))?;
        let tail = std::mem::take(&mut self.tail);
        spill.held_bytes.fetch_sub(size_of_val(&*tail), Ordering::Relaxed);
        self.parts.clear();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowshed_harness::{need, run};

    /// A file on a file system of 64 KiB.
    fn small_file() -> File {
        let dir = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k", "none"].map(AsRef::as_ref);
        run("mount", &[&mount[..], &[dir.path().as_os_str()]].concat()).unwrap();
        let file = tempfile::tempfile_in(dir.path());
        // The file keeps it.
        run("umount", &["-l".as_ref(), dir.path().as_os_str()]).unwrap();
        file.unwrap()
    }

    #[test]
    fn on_a_full_disk_lists_go_on_in_memory_and_what_was_written_stays() {
        let Some(()) = need::root() else { return };
        let file = small_file();
        let spill = Spill::new(1000);
        let temporary = Temporary {
            file: file.try_clone().unwrap(),
            end: 0,
            is_full: false,
        };
        *spill.file.lock().unwrap() = Some(Some(temporary));
        let mut pile = Pile::<u64>::default();
        for n in 0..30_000_u64 {
            pile.extend(&spill, &[n]);
            let len = file.metadata().unwrap().len();
            assert_eq!(len, spill.written_bytes(), "what was written in part is cut, after {n}");
        }
        let written = spill.written_bytes();
        assert!((60_000..=65_536).contains(&written), "{written}");
        // There is room again, but no write is tried any more.
        let parts = pile.parts.len();
        file.set_len(written - 8).unwrap();
        file.set_len(written).unwrap();
        pile.extend(&spill, &[30_000]);
        assert_eq!((pile.parts.len(), spill.written_bytes()), (parts, written));
        file.write_all_at(&(written / 8 - 1).to_ne_bytes(), written - 8)
            .unwrap();
        let all = pile.take(&spill).unwrap();
        assert!(all.into_iter().eq(0..=30_000));
    }

    #[test]
    fn lists_beyond_the_bound_come_back_from_the_file_in_order() {
        let spill = Spill::new(1000);
        let mut piles = [Pile::<u64>::default(), Pile::default()];
        for n in 0..100_000_u64 {
            piles[usize::try_from(n % 2).unwrap()].extend(&spill, &[n]);
            assert!(spill.held_bytes.load(Ordering::Relaxed) <= 1000, "after {n}");
        }
        assert!(spill.written_bytes() > 700_000);
        let mut sum = 0;
        piles[0]
            .each(&spill, &mut |piece| sum += piece.iter().sum::<u64>())
            .unwrap();
        assert_eq!(sum, (0..100_000).step_by(2).sum::<u64>());
        let all = piles[1].take(&spill).unwrap();
        assert!(all.iter().copied().eq((1..100_000).step_by(2)));
        assert!(piles[1].take(&spill).unwrap().is_empty());
    }
}
