//! The cases, by what they are about. A script's first `sync` ends its setup.

mod attrs;
mod data;
mod dirs;
mod links;
mod names;
mod sharing;
mod special;

use anyhow::Result;

use crate::op::Op;

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
    }
}

impl Case {
    /// The kernel's log is content with less.
    const fn linux_also(self, linux: &'static [&'static str]) -> Case {
        Case { linux, ..self }
    }

    /// The script as operations.
    pub fn ops(&self) -> Result<Vec<Op>> {
        self.script.split(';').map(|line| Op::parse(line.trim())).collect()
    }

    /// How many of the operations are setup: those up to the first `sync`.
    pub fn setup_len(&self) -> Result<usize> {
        Ok(self.ops()?.iter().position(|op| *op == Op::Sync).map_or(0, |at| at + 1))
    }
}

/// A chapter of the table.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    pub title: &'static str,
    pub cases: &'static [Case],
}

/// All cases.
pub const CHAPTERS: [Chapter; 7] = [
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
