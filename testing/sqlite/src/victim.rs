//! The process that is killed.

use anyhow::{Result, ensure};
use cowshed_kill9::daemon::Daemon;
use cowshed_model::{Rng, pick};

use crate::place::check_said;
use crate::worker::{Said, Worker};

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The mount's process, as if the machine lost power. SQLite lives, and is told errors.
    Mount,
    /// The program that runs SQLite; the mount lives on.
    Program,
    /// Both, one right after the other.
    Both,
}

/// How often whom.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub mount: u64,
    pub program: u64,
    pub both: u64,
}

impl Victim {
    pub fn by(dice: &mut Rng) -> Victim {
        *pick(dice, &[Victim::Mount, Victim::Program, Victim::Both])
    }

    pub fn note(self, tally: &mut Tally) {
        match self {
            Victim::Mount => tally.mount += 1,
            Victim::Program => tally.program += 1,
            Victim::Both => tally.both += 1,
        }
    }

    /// Kills, and clears away what is dead. Gives the mount, where it lives, and what SQLite had
    /// still said.
    pub fn kill(self, mut daemon: Daemon, mut worker: Worker) -> Result<(Option<Daemon>, Vec<Said>)> {
        if self != Victim::Mount {
            worker.kill()?;
        }
        if self != Victim::Program {
            daemon.kill()?;
        }
        let rest = worker.rest()?;
        let status = worker.ended()?;
        // A worker without an open transaction ends with success.
        let is_idle = !matches!(rest.last(), Some(Said::Begins(_)));
        ensure!(
            !status.success() || is_idle,
            "SQLite has not noticed that the mount is gone"
        );
        check_said(&daemon.said())?;
        if self == Victim::Program {
            return Ok((Some(daemon), rest));
        }
        daemon.unmount_dead()?;
        Ok((None, rest))
    }
}
