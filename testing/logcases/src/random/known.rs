//! Where ours may have less than the kernel's: each deviation by name, with its reason.
//! `docs/design/log-cases.md` holds the table.

use std::fmt::Write as _;

use cowshed_model::script::{How, Op};

use super::facts::{Difference, Fact};
use super::play::{Moment, Played};

/// A difference that is no fault.
pub struct Deviation {
    pub name: &'static str,
    /// Why it is no fault; for the reader of the table.
    pub reason: &'static str,
    /// Is it one of these?
    pub(crate) is_one: fn(&Difference, &Moment, &Played) -> bool,
}

/// All that are known.
pub const KNOWN: &[Deviation] = &[
    Deviation {
        name: "kernel_committed",
        reason: "Linux committed at this fsync or at an earlier one, where ours wrote a log: a commit has everything. Which fsyncs of Linux' are \
                 commits (of what was moved to another directory, for the most part) is an accident of its log",
        is_one: |difference, moment, _| difference.kernel_state <= moment.commits[0],
    },
    Deviation {
        name: "after_own_commit",
        reason: "an earlier fsync of ours was a commit where Linux' was a log, and Linux' log, which is older, carries something along. All up to our \
                 commit is durable",
        is_one: |_, moment, _| (moment.commits[0] + 1..moment.state).contains(&moment.commits[1]),
    },
    Deviation {
        name: "after_kernels_commit",
        reason: "the reverse: an earlier fsync was Linux' commit and a log of ours, and a file that is synced afterwards got or lost a name in between. The \
                 directories that it brings along are those of its names in the commit, there of the younger one; where only the younger one has the \
                 file, it is new here and brings none",
        is_one: |_, moment, played| played.has_younger_names(moment),
    },
    Deviation {
        name: "data_not_synced",
        reason: "size and data of a file that comes along by a name and was not synced itself: it is there as far as it was written back. Linux writes \
                 a file back that was truncated before, when it is closed",
        is_one: |difference, moment, played| {
            let id = difference.fact.subject();
            matches!(difference.fact, Fact::Size(_) | Fact::Block(..))
                && !played.was_synced_since(id, difference.kernel_state, moment)
        },
    },
    Deviation {
        name: "times_after_fdatasync",
        reason: "an fdatasync makes data durable, not a time that `utime` set (case `time_only_fdatasync`); Linux logs it",
        is_one: |difference, moment, played| {
            let ops = &played.ops[..moment.ops];
            let is_data_sync = |op: &Op| matches!(op, Op::Fdatasync { .. } | Op::Write { how: How::DataSync, .. });
            matches!(difference.fact, Fact::Mtime(_)) && ops.iter().any(is_data_sync)
        },
    },
];

/// The line before the table.
pub const BEGIN: &str = "<!-- deviations: begin (printed by `cargo run -p cowshed-logcases -- --doc-deviations`) -->";
/// The line after it.
pub const END: &str = "<!-- deviations: end -->";

/// The table, in Markdown.
pub fn table() -> String {
    let mut out = String::from("\n| Deviation | Reason |\n|---|---|\n");
    for known in KNOWN {
        let _ = writeln!(out, "| `{}` | {} |", known.name, known.reason);
    }
    out.push('\n');
    out
}
