//! SQLite on a volume with hardly any room left.
//!
//! A round: files fill a small volume, some of which go, so that there are some hundred KiB of
//! room. The database grows until SQLite refuses (`SQLITE_FULL`); then it must pass SQLite's check,
//! with all transactions that were acknowledged and nothing of those that were refused. Rows are
//! removed, more files go, and transactions go on. In two of three rounds a process is killed
//! meanwhile ([`crate::victim`]).

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_kill9::daemon::Daemon;
use cowshed_model::Rng;

use crate::database::{self, Journal};
use crate::grown::{self, Known, Step};
use crate::place::{Place, Programs, Rounds, check_said};
use crate::victim::{Tally, Victim};
use crate::worker::{Next, Said, Worker};

const IMAGE_MIB: u64 = 128;
/// How often room is given, and taken again, in a round without a kill.
const CYCLES: usize = 5;
/// Files that go, one after the other, so that there is room.
const SPARES: u64 = 200;
const SPARE_BYTES: usize = 64 << 10;
/// How many of them at a time.
const GONE_MAX: u64 = 10;
/// Files in the trees that go with each of them, if there are any.
const NAMES_PER_SPARE: u64 = 100;
/// Pieces in which the volume is filled.
const PIECES: [usize; 3] = [1 << 20, 64 << 10, 4 << 10];
/// What a file holds that stays in the trees.
const SMALL_BYTES: usize = 1500;

/// What all rounds together did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    pub killed: Tally,
    pub acknowledged: u64,
    /// Transactions for which there was no room.
    pub refused: u64,
}

/// Runs all rounds.
pub fn run(rounds: &Rounds) -> Result<Summary> {
    let mut summary = Summary::default();
    for round in 0..rounds.count {
        let seed = rounds.seed.wrapping_mul(1000).wrapping_add(round);
        let mut dice = Rng::new(seed);
        let victim = (round % 3 != 0).then(|| Victim::by(&mut dice));
        // A volume can be full of names, too.
        let with_names = round % 4 == 3;
        let mut full = Full::new(&rounds.programs, with_names, dice)?;
        let context = || format!("full volume, round {round}, {victim:?} killed, names: {with_names}");
        full.run(victim).with_context(context)?;
        if let Some(victim) = victim {
            victim.note(&mut summary.killed);
        }
        summary.acknowledged += full.known.acknowledged;
        summary.refused += full.known.refused;
        summary.rounds += 1;
        if rounds.progress {
            eprintln!(
                "full volume, round {round}: {} and {} refused",
                full.known.acknowledged, full.known.refused
            );
        }
    }
    Ok(summary)
}

/// A full volume with a database.
struct Full {
    place: Place,
    known: Known,
    dice: Rng,
    /// Spare files that are gone.
    gone: u64,
}

fn is_full(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::StorageFull
}

impl Full {
    fn new(programs: &Programs, with_names: bool, dice: Rng) -> Result<Full> {
        let full = Full {
            place: Place::new(programs, IMAGE_MIB)?,
            known: Known::default(),
            dice,
            gone: 0,
        };
        let daemon = full.place.mount()?;
        grown::fill(&database::open(&full.place.database(), Journal::Delete)?)?;
        full.fill(with_names)?;
        daemon.stop()?;
        Ok(full)
    }

    /// A file of ours.
    fn file(&self, kind: &str, number: u64) -> PathBuf {
        self.place.mounted().join(format!("{kind}{number}"))
    }

    /// Until nothing fits any more.
    fn fill(&self, with_names: bool) -> Result<()> {
        for number in 0..SPARES {
            let mut file = File::create(self.file("spare", number))?;
            file.write_all(&[0x5a; SPARE_BYTES])?;
            // In an extent of its own.
            file.sync_all()?;
        }
        let mut file = File::create(self.file("filler", 0))?;
        for piece in PIECES.map(|bytes| vec![0x5a; bytes]) {
            loop {
                match file.write_all(&piece) {
                    Err(error) if is_full(&error) => break,
                    other => other?,
                }
            }
        }
        file.sync_all()?;
        for number in 0..if with_names { u64::MAX } else { 0 } {
            match std::fs::write(self.file("name", number), [0x5a; SMALL_BYTES]) {
                Err(error) if is_full(&error) => break,
                other => other?,
            }
        }
        Ok(())
    }

    /// Gives some room.
    fn give(&mut self) -> Result<()> {
        let end = SPARES.min(self.gone + 1 + self.dice.below(GONE_MAX));
        for number in self.gone..end {
            std::fs::remove_file(self.file("spare", number))?;
            for name in number * NAMES_PER_SPARE..(number + 1) * NAMES_PER_SPARE {
                match std::fs::remove_file(self.file("name", name)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    other => other?,
                }
            }
        }
        self.gone = end;
        Ok(())
    }

    fn run(&mut self, victim: Option<Victim>) -> Result<()> {
        let daemon = self.place.mount()?;
        let daemon = match victim {
            None => Some(self.cycles(daemon, CYCLES)?),
            Some(victim) => {
                let lives = self.until_killed(daemon, victim)?;
                let daemon = match lives {
                    Some(daemon) => daemon,
                    None => self.place.mount()?,
                };
                let found = self.place.look(grown::verify)?;
                self.known.settle(found)?;
                // It goes on.
                Some(self.cycles(daemon, 1)?)
            }
        };
        if let Some(daemon) = daemon {
            check_said(&daemon.said())?;
            daemon.stop()?;
        }
        let found = self.place.by_kernel(grown::verify)?;
        self.known.settle(found).context("by the kernel")
    }

    fn worker(&self) -> Result<Worker> {
        let from = self.known.next().to_string();
        let (place, args) = (&self.place, ["grow", "--from", &from]);
        Worker::start(&place.programs.this, &args, &place.database(), place.path("errors"))
    }

    /// Room is given and taken so many times.
    fn cycles(&mut self, daemon: Daemon, cycles: usize) -> Result<Daemon> {
        let mut worker = self.worker()?;
        for _ in 0..cycles {
            self.give()?;
            let before = self.known.acknowledged;
            self.step(&mut worker, Step::Grow, None)?;
            ensure!(self.known.acknowledged > before, "there is room, and nothing fits");
            self.look()?;
            let upto = self.known.middle();
            self.step(&mut worker, Step::Trim(upto), None)?;
            self.look()?;
            self.step(&mut worker, Step::Grow, None)?;
            self.look()?;
        }
        worker.stop()?;
        Ok(daemon)
    }

    /// Another program sees what is known, and nothing else.
    fn look(&mut self) -> Result<()> {
        let found = self.place.look(grown::verify)?;
        self.known.settle(found)
    }

    /// Lets the worker do a step, growth until it is refused. `true`: it is late.
    fn step(&mut self, worker: &mut Worker, step: Step, deadline: Option<Instant>) -> Result<bool> {
        worker.tell(&grown::words(step))?;
        loop {
            match worker.next(deadline)? {
                Next::Late => return Ok(true),
                Next::Over => bail!("SQLite failed: {}", worker.complaint()),
                Next::Said(said) => {
                    self.known.note(said, step)?;
                    match said {
                        Said::Refused(_) => return Ok(false),
                        Said::Done(_) if step != Step::Grow => return Ok(false),
                        _ if deadline.is_some_and(|at| Instant::now() >= at) => return Ok(true),
                        _ => {}
                    }
                }
            }
        }
    }

    /// As `cycles`, until a process is killed. Gives the mount if it lives.
    fn until_killed(&mut self, daemon: Daemon, victim: Victim) -> Result<Option<Daemon>> {
        let mut worker = self.worker()?;
        let delay = Duration::from_millis(1 + self.dice.below(400));
        let deadline = Some(Instant::now() + delay);
        let mut step = Step::Grow;
        loop {
            if step == Step::Grow {
                self.give()?;
            }
            if self.step(&mut worker, step, deadline)? {
                break;
            }
            step = match step {
                Step::Grow => Step::Trim(self.known.middle()),
                Step::Trim(_) => Step::Grow,
            };
        }
        let (lives, rest) = victim.kill(daemon, worker)?;
        for said in rest {
            self.known.note(said, step)?;
        }
        Ok(lives)
    }
}
