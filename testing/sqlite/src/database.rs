//! The database that the tests write: its content follows from how many transactions it has seen.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rusqlite::{Connection, Transaction, params};

/// How many rows there are, and what a transaction does to them.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    rows: i64,
    /// Rows that each transaction changes, spread over the table.
    changed: i64,
    row_bytes: usize,
}

/// Transactions of a few pages.
pub const SMALL: Shape = Shape {
    rows: 2000,
    changed: 5,
    row_bytes: 300,
};
/// Transactions of 4 MiB that change every row.
pub const WHOLE: Shape = Shape {
    rows: 1024,
    changed: 1024,
    row_bytes: 4000,
};
/// The same of 300 MiB: more than all atomic groups of a volume may hold.
pub const HUGE: Shape = Shape {
    rows: 38_400,
    changed: 38_400,
    row_bytes: 8000,
};

/// How commits are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// A rollback journal, or none where the file system has atomic writes.
    Delete,
    /// A write-ahead log, synced at each commit.
    Wal,
}

/// Opens or makes the database.
pub fn open(path: &Path, journal: Journal) -> Result<Connection> {
    let connection = Connection::open(path).context("opening the database")?;
    let mode = match journal {
        Journal::Delete => "delete",
        Journal::Wal => "wal",
    };
    let got: String = connection.query_row(&format!("pragma journal_mode={mode}"), [], |row| row.get(0))?;
    ensure!(got == mode, "journal mode {got} instead of {mode}");
    connection.execute_batch("pragma synchronous=full;")?;
    Ok(connection)
}

/// SQLite's own check.
pub fn check_integrity(connection: &Connection) -> Result<()> {
    let verdict: String = connection.query_row("pragma integrity_check", [], |row| row.get(0))?;
    ensure!(verdict == "ok", "integrity check: {verdict}");
    Ok(())
}

impl Shape {
    /// Makes the tables, with rows of before the first transaction.
    pub fn fill(&self, connection: &mut Connection) -> Result<()> {
        let transaction = connection.transaction()?;
        transaction.execute_batch("create table counter(n integer); insert into counter values(0);")?;
        transaction.execute_batch("create table rows(id integer primary key, n integer, body text);")?;
        for id in 0..self.rows {
            transaction.execute("insert into rows values(?1, 0, ?2)", params![id, self.body(id, 0)])?;
        }
        Ok(transaction.commit()?)
    }

    fn body(&self, id: i64, n: i64) -> String {
        format!("{id}:{n};").repeat(self.row_bytes / 8)
    }

    /// The rows of transaction `n`.
    fn rows_of(&self, n: i64) -> impl Iterator<Item = i64> {
        let Shape { rows, changed, .. } = *self;
        // All of them in their order, or some that are far from each other.
        let row = move |k| if changed == rows { k } else { (n * 37 + k * 411) % rows };
        (0..changed).map(row)
    }

    /// Transaction `n`, counted from 1. It is durable when this returns.
    pub fn transact(&self, connection: &mut Connection, n: i64) -> rusqlite::Result<()> {
        self.prepare(connection, n)?.commit()
    }

    /// Transaction `n` without its end.
    pub fn prepare<'c>(&self, connection: &'c mut Connection, n: i64) -> rusqlite::Result<Transaction<'c>> {
        let transaction = connection.transaction()?;
        {
            let mut update = transaction.prepare_cached("update rows set n=?2, body=?3 where id=?1")?;
            for id in self.rows_of(n) {
                update.execute(params![id, n, self.body(id, n)])?;
            }
            transaction.prepare_cached("update counter set n=?1")?.execute([n])?;
        }
        Ok(transaction)
    }

    /// How many transactions the database has seen. Fails where it is damaged, or not as after
    /// exactly that many.
    pub fn verify(&self, connection: &Connection) -> Result<i64> {
        check_integrity(connection)?;
        let n: i64 = connection.query_row("select n from counter", [], |row| row.get(0))?;
        let mut expected = vec![0; self.rows as usize];
        for earlier in 1..=n {
            self.rows_of(earlier).for_each(|id| expected[id as usize] = earlier);
        }
        let mut select = connection.prepare("select id, n, body from rows order by id")?;
        let mut rows = select.query([])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            let (id, last, text): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let want = expected.get(seen).copied().unwrap_or(-1);
            ensure!(id == seen as i64, "row {id} instead of {seen}");
            ensure!(last == want, "row {id} is of transaction {last}, not {want}, after {n}");
            ensure!(text == self.body(id, last), "row {id} has another body");
            seen += 1;
        }
        ensure!(seen == expected.len(), "{seen} rows");
        Ok(n)
    }
}
