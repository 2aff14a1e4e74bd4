//! A database that grows until there is no room: the worker's side, and what is known of it.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use rusqlite::{Connection, ErrorCode, params};

use crate::database::{self, Journal};
use crate::worker::{Said, say};

/// Makes the table, which is empty.
pub fn fill(connection: &Connection) -> Result<()> {
    Ok(connection.execute_batch("create table grown(n integer, part integer, body text, primary key(n, part));")?)
}

/// Rows of transaction `n`: several pages.
fn parts(n: i64) -> i64 {
    4 + n % 5
}

fn body(n: i64, part: i64) -> String {
    format!("{n}/{part};").repeat(300 + (n * 7 + part * 13) as usize % 500)
}

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds the rows of its number.
    Grow,
    /// Removes the rows of all transactions up to this one.
    Trim(i64),
}

/// The words that the worker is told: one step, or growth until there is no room.
pub fn words(step: Step) -> String {
    match step {
        Step::Grow => "grow".to_owned(),
        Step::Trim(upto) => format!("trim {upto}"),
    }
}

/// The worker: does what it is told.
pub fn work(database: &Path, from: i64) -> Result<()> {
    let mut connection = database::open(database, Journal::Delete)?;
    say(Said::Ready)?;
    let mut n = from;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let step = match line.split_once(' ') {
            None => Step::Grow,
            Some((_, upto)) => Step::Trim(upto.parse()?),
        };
        loop {
            say(Said::Begins(n))?;
            let is_done = run(&mut connection, n, step)?;
            say(if is_done { Said::Done(n) } else { Said::Refused(n) })?;
            n += 1;
            if !is_done || step != Step::Grow {
                break;
            }
        }
    }
    Ok(())
}

/// One transaction. `false`: there is no room for it.
fn run(connection: &mut Connection, n: i64, step: Step) -> Result<bool> {
    let mut attempt = || {
        let transaction = connection.transaction()?;
        match step {
            Step::Grow => {
                for part in 0..parts(n) {
                    transaction.execute("insert into grown values(?1, ?2, ?3)", params![n, part, body(n, part)])?;
                }
            }
            Step::Trim(upto) => drop(transaction.execute("delete from grown where n <= ?1", [upto])?),
        }
        transaction.commit()
    };
    match attempt() {
        Ok(()) => Ok(true),
        Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::DiskFull => Ok(false),
        Err(error) => Err(error).context(format!("transaction {n}, {step:?}")),
    }
}

/// The transactions that are in the database. Fails where it is damaged, or has one in part.
pub fn verify(connection: &Connection) -> Result<BTreeSet<i64>> {
    database::check_integrity(connection)?;
    let mut select = connection.prepare("select n, part, body from grown order by n, part")?;
    let mut rows = select.query([])?;
    let mut found = BTreeSet::new();
    let mut next = None;
    while let Some(row) = rows.next()? {
        let (n, part, text): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let expected = next.unwrap_or((n, 0));
        ensure!((n, part) == expected, "{n}/{part} instead of {expected:?}");
        ensure!(text == body(n, part), "{n}/{part} has another body");
        found.insert(n);
        next = (part + 1 < parts(n)).then_some((n, part + 1));
    }
    ensure!(next.is_none(), "the end has no {next:?}");
    Ok(found)
}

/// What is known of the database from what the worker has said.
#[derive(Debug, Default)]
pub struct Known {
    /// Transactions whose rows are there.
    present: BTreeSet<i64>,
    /// The one that was begun and neither acknowledged nor refused.
    open: Option<(i64, Step)>,
    /// The last number.
    last: i64,
    pub acknowledged: u64,
    pub refused: u64,
}

impl Known {
    pub fn next(&self) -> i64 {
        self.last + 1
    }

    /// A transaction in the middle of those that are there.
    pub fn middle(&self) -> i64 {
        self.present.iter().nth(self.present.len() / 2).copied().unwrap_or(0)
    }

    /// Notes a message of the worker, which does this step.
    pub fn note(&mut self, said: Said, step: Step) -> Result<()> {
        match (said, self.open) {
            (Said::Begins(n), None) => {
                self.open = Some((n, step));
                self.last = n;
            }
            (Said::Done(n), Some((begun, _))) if n == begun => {
                self.present = self.after();
                self.open = None;
                self.acknowledged += 1;
            }
            (Said::Refused(n), Some((begun, _))) if n == begun => {
                self.open = None;
                self.refused += 1;
            }
            (said, open) => bail!("SQLite said {said:?} after {open:?}"),
        }
        Ok(())
    }

    /// What is there after the open transaction.
    fn after(&self) -> BTreeSet<i64> {
        let mut after = self.present.clone();
        match self.open {
            Some((n, Step::Grow)) => drop(after.insert(n)),
            Some((_, Step::Trim(upto))) => after.retain(|n| *n > upto),
            None => {}
        }
        after
    }

    /// What was found is what is known, with the open transaction or without it; which of them is
    /// known then.
    pub fn settle(&mut self, found: BTreeSet<i64>) -> Result<()> {
        if found != self.present && found != self.after() {
            let missing: Vec<_> = self.present.difference(&found).collect();
            let refused: Vec<_> = found.difference(&self.present).collect();
            bail!(
                "missing: {missing:?}; there, but not acknowledged: {refused:?}; open: {:?}",
                self.open
            );
        }
        self.present = found;
        self.open = None;
        Ok(())
    }
}
