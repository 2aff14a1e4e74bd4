//! The cases, by what they are about. A script's first `sync` ends its setup.

mod along;
mod attrs;
mod data;
mod dirs;
mod links;
mod names;
mod sharing;
mod special;

use std::fmt;

use anyhow::Result;
use cowshed_model::script::Op;

/// How a writer answers the last fsync of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A log, which waits for its replay.
    Log,
    Commit,
    /// There was nothing that had to be written.
    Nothing,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Answer::Log => "log",
            Answer::Commit => "commit",
            Answer::Nothing => "nothing",
        })
    }
}

/// One named case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Unique; the name of its test.
    pub name: &'static str,
    /// Operations, separated by `;`.
    pub script: &'static str,
    /// Alternatives, see [`crate::expect`].
    pub expect: &'static [&'static str],
    /// What Linux may leave beside: weaker than what we promise.
    pub linux: &'static [&'static str],
    /// What a reader should know beside.
    pub note: &'static str,
    /// What Cowshed writes: a case whose fsync is a commit says nothing of logs.
    pub ours: Answer,
    /// The same in leaves of 4 KiB.
    pub ours_in_small_leaves: Answer,
}

const fn case(name: &'static str, script: &'static str, expect: &'static [&'static str]) -> Case {
    noted(name, script, expect, "")
}

const fn noted(name: &'static str, script: &'static str, expect: &'static [&'static str], note: &'static str) -> Case {
    Case {
        name,
        script,
        expect,
        linux: &[],
        note,
        ours: Answer::Log,
        ours_in_small_leaves: Answer::Log,
    }
}

impl Case {
    /// The kernel's log is content with less.
    const fn linux_also(self, linux: &'static [&'static str]) -> Case {
        Case { linux, ..self }
    }

    /// Our fsync is one of those that docs/design/log-tree.md leaves to the commit.
    const fn commits(self) -> Case {
        Case {
            ours: Answer::Commit,
            ours_in_small_leaves: Answer::Commit,
            ..self
        }
    }

    /// Likewise, but only where leaves are small.
    const fn commits_in_small_leaves(self) -> Case {
        Case {
            ours_in_small_leaves: Answer::Commit,
            ..self
        }
    }

    /// Our fsync writes nothing.
    const fn writes_nothing(self) -> Case {
        Case {
            ours: Answer::Nothing,
            ours_in_small_leaves: Answer::Nothing,
            ..self
        }
    }

    /// What Cowshed writes on a volume with leaves of this size.
    pub fn answer(&self, nodesize_bytes: u32) -> Answer {
        match nodesize_bytes {
            ..16384 => self.ours_in_small_leaves,
            _ => self.ours,
        }
    }

    /// The script as operations.
    pub fn ops(&self) -> Result<Vec<Op>> {
        parse(self.script)
    }

    /// How many of the operations are setup: those up to the first `sync`.
    pub fn setup_len(&self) -> Result<usize> {
        Ok(self.ops()?.iter().position(|op| *op == Op::Sync).map_or(0, |at| at + 1))
    }
}

/// The operations of a script.
pub fn parse(script: &str) -> Result<Vec<Op>> {
    script.split(';').map(|line| Op::parse(line.trim())).collect()
}

/// A chapter of the table.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    pub title: &'static str,
    pub cases: &'static [Case],
}

/// All cases.
pub const CHAPTERS: [Chapter; 8] = [
    Chapter {
        title: "Data",
        cases: data::CASES,
    },
    Chapter {
        title: "Shared data, data in place, direct I/O",
        cases: sharing::CASES,
    },
    Chapter {
        title: "Renames and names used again",
        cases: names::CASES,
    },
    Chapter {
        title: "Links",
        cases: links::CASES,
    },
    Chapter {
        title: "Directories",
        cases: dirs::CASES,
    },
    Chapter {
        title: "What an fsync carries along",
        cases: along::CASES,
    },
    Chapter {
        title: "Attributes",
        cases: attrs::CASES,
    },
    Chapter {
        title: "Special files and subvolumes",
        cases: special::CASES,
    },
];

/// All cases, in order.
pub fn all() -> impl Iterator<Item = Case> {
    CHAPTERS.iter().flat_map(|chapter| chapter.cases.iter().copied())
}
