//! Files whose every step is written down: what was acknowledged must be there.
//!
//! Three habits of programs that care: a journal that grows record by record (fdatasync), a state
//! that is replaced as a whole (write, fsync, rename, fsync of the directory), and files that come
//! and go (fsync; unlink, fsync of the directory).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cowshed_model::Rng;
use cowshed_model::tree::Tree;

/// The directory, at the top of the volume.
pub const DIR: &str = "ledger";
const RECORD_BYTES: usize = 48;
const FILES: u64 = 12;
const STATE_BYTES_MAX: u64 = 60_000;

/// A number that only grows: what was begun, and what of it was acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    acknowledged: u64,
    begun: u64,
}

/// What was done since the volume was made.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    records: Progress,
    states: Progress,
    /// By name, whether it is there: acknowledged so, or (`None`) not known.
    files: BTreeMap<String, Option<bool>>,
}

fn record(n: u64) -> Vec<u8> {
    let mut line = format!("record {n}");
    line.extend(std::iter::repeat_n('.', RECORD_BYTES - 1 - line.len()));
    line.push('\n');
    line.into_bytes()
}

fn state(n: u64) -> Vec<u8> {
    let mut dice = Rng::new(n);
    let mut out = n.to_le_bytes().to_vec();
    let len = dice.below(STATE_BYTES_MAX);
    out.extend((0..len).map(|_| dice.below(256) as u8));
    out
}

impl Ledger {
    /// Works below the root until the mount fails; an error if it does so in any other way than by
    /// being gone.
    pub fn work(&mut self, root: &Path, dice: &mut Rng) -> Result<()> {
        let dir = root.join(DIR);
        let made = std::fs::create_dir(&dir).or_else(|e| match e.kind() {
            ErrorKind::AlreadyExists => Ok(()),
            _ => Err(e),
        });
        let mut result = made;
        while result.is_ok() {
            result = match dice.below(4) {
                0 | 1 => self.append(&dir),
                2 => self.replace(&dir),
                _ => self.come_or_go(&dir, dice),
            };
            // The step is not done. What of it is there is the journal's affair alone.
            if result
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::StorageFull)
            {
                result = self.take_back(&dir);
            }
        }
        match result {
            Err(error) if is_gone(&error) => Ok(()),
            other => other.context("the ledger"),
        }
    }

    fn append(&mut self, dir: &Path) -> std::io::Result<()> {
        let mut journal = OpenOptions::new().append(true).create(true).open(dir.join("journal"))?;
        self.records.begun += 1;
        journal.write_all(&record(self.records.begun))?;
        synced(journal.sync_data())?;
        self.records.acknowledged = self.records.begun;
        Ok(())
    }

    /// Cuts the part of a record off for which there was no room.
    fn take_back(&mut self, dir: &Path) -> std::io::Result<()> {
        let journal = match OpenOptions::new().write(true).open(dir.join("journal")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        journal.set_len(self.records.acknowledged * RECORD_BYTES as u64)?;
        synced(journal.sync_data())?;
        self.records.begun = self.records.acknowledged;
        Ok(())
    }

    fn replace(&mut self, dir: &Path) -> std::io::Result<()> {
        let temporary = dir.join("state.tmp");
        self.states.begun += 1;
        let mut file = File::create(&temporary)?;
        file.write_all(&state(self.states.begun))?;
        synced(file.sync_all())?;
        std::fs::rename(&temporary, dir.join("state"))?;
        synced(File::open(dir)?.sync_all())?;
        self.states.acknowledged = self.states.begun;
        Ok(())
    }

    fn come_or_go(&mut self, dir: &Path, dice: &mut Rng) -> std::io::Result<()> {
        let name = format!("file-{}", dice.below(FILES));
        let path: PathBuf = dir.join(&name);
        let comes = self.files.get(&name) != Some(&Some(true));
        self.files.insert(name.clone(), None);
        if comes {
            let mut file = File::create(&path)?;
            file.write_all(name.as_bytes())?;
            synced(file.sync_all())?;
        } else {
            std::fs::remove_file(&path)?;
            synced(File::open(dir)?.sync_all())?;
        }
        self.files.insert(name, Some(comes));
        Ok(())
    }

    /// Compares with what was found after the crash, which becomes the truth.
    pub fn settle(&mut self, found: &Tree) -> Result<()> {
        let content = |name: &str| found.get(&format!("{DIR}/{name}")).map(|node| &node.content[..]);
        let journal = content("journal").unwrap_or_default();
        let whole = journal.len() / RECORD_BYTES;
        for (n, chunk) in journal.chunks(RECORD_BYTES).enumerate() {
            let expected = record(n as u64 + 1);
            ensure!(
                expected.starts_with(chunk) && (chunk.len() == RECORD_BYTES || n == whole),
                "record {} of the journal is {:?}",
                n + 1,
                String::from_utf8_lossy(chunk)
            );
        }
        self.records.check(whole as u64).context("records of the journal")?;
        let found_state = content("state");
        let number = match found_state.and_then(|bytes| bytes.first_chunk::<8>()) {
            Some(number) => u64::from_le_bytes(*number),
            None => 0,
        };
        self.states
            .check(number)
            .with_context(|| format!("the state, of {:?} bytes", found_state.map(<[u8]>::len)))?;
        ensure!(
            number == 0 || found_state == Some(&state(number)[..]),
            "state {number} is not whole"
        );
        for (name, is_there) in &mut self.files {
            let found = content(name);
            if let Some(expected) = is_there {
                ensure!(
                    found.is_some() == *expected,
                    "{name}: there: {}, acknowledged: {expected}",
                    found.is_some()
                );
            }
            if *is_there == Some(true) {
                ensure!(found == Some(name.as_bytes()), "{name} holds something else");
            }
            // What was on its way and is there may be empty: still not known, so that it is made
            // anew.
            *is_there = match found {
                Some(_) => *is_there,
                None => Some(false),
            };
        }
        // The journal goes on after its last whole record only; a part of one is cut off by the
        // next round's writer.
        self.records = Progress {
            acknowledged: whole as u64,
            begun: whole as u64,
        };
        Ok(())
    }

    /// Before the next round: what a program does after a crash.
    pub fn recover(&self, root: &Path) -> Result<()> {
        let journal = root.join(DIR).join("journal");
        match OpenOptions::new().write(true).open(journal) {
            Ok(file) => Ok(file.set_len(self.records.acknowledged * RECORD_BYTES as u64)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Steps that were acknowledged, in all.
    pub fn steps(&self) -> u64 {
        self.records.acknowledged + self.states.acknowledged
    }
}

impl Progress {
    fn check(&self, found: u64) -> Result<()> {
        ensure!(
            self.acknowledged <= found && found <= self.begun,
            "{found} found, {} acknowledged, {} begun",
            self.acknowledged,
            self.begun
        );
        Ok(())
    }
}

/// What was accepted has its space: a sync that finds none is a fault.
fn synced(result: std::io::Result<()>) -> std::io::Result<()> {
    result.map_err(|error| match error.kind() {
        ErrorKind::StorageFull => std::io::Error::other(format!("a sync finds no space: {error}")),
        _ => error,
    })
}

pub(crate) fn is_gone(error: &std::io::Error) -> bool {
    const GONE: [i32; 4] = [5, 103, 107, 125]; // EIO, ECONNABORTED, ENOTCONN, ECANCELED
    error.raw_os_error().is_some_and(|code| GONE.contains(&code))
}
