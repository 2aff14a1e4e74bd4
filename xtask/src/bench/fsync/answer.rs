//! How a side answered an fsync: with a log, or with a commit.
//!
//! Told by the first superblock on the device. It is read from the image, below the loop device:
//! what the kernel has in its cache of the loop device is not asked.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use btrfs_format::Superblock;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};

/// What the superblock says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    generation: u64,
    has_log: bool,
}

impl State {
    pub fn read(image: &Path) -> Result<State> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let [first, ..] = SUPERBLOCK_OFFSETS;
        let file = File::open(image).with_context(|| image.display().to_string())?;
        file.read_exact_at(&mut bytes, first)?;
        let superblock = Superblock::verify(&bytes, Some(first)).map_err(|error| anyhow!("superblock: {error}"))?;
        Ok(State {
            generation: superblock.generation.get(),
            has_log: superblock.log_root.get() != 0,
        })
    }

    /// What led from an earlier state to this one.
    pub fn since(self, before: State) -> Answer {
        match (self.has_log, self.generation == before.generation) {
            (true, true) => Answer::Log,
            (true, false) => Answer::LogAfterCommit,
            (false, false) => Answer::Commit,
            (false, true) => Answer::Nothing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    Log,
    /// There was a commit before the fsync, which had less to do therefore.
    LogAfterCommit,
    Commit,
    /// Nothing reached the superblock.
    Nothing,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Answer::Log => "log",
            Answer::LogAfterCommit => "log after a commit",
            Answer::Commit => "commit",
            Answer::Nothing => "nothing",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, State};

    #[test]
    fn an_answer_is_what_changed() {
        let state = |generation, has_log| State { generation, has_log };
        for (before, after, answer) in [
            (state(6, false), state(6, true), Answer::Log),
            (state(6, true), state(6, true), Answer::Log),
            (state(6, true), state(7, false), Answer::Commit),
            (state(6, false), state(8, true), Answer::LogAfterCommit),
            (state(6, false), state(6, false), Answer::Nothing),
        ] {
            assert_eq!(after.since(before), answer, "{before:?} {after:?}");
        }
    }
}
