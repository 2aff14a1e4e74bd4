//! The database that the tests write: its content follows from how many transactions it has seen.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rusqlite::{Connection, params};

/// Rows that the transactions go round on.
pub const ROWS: i64 = 2000;
/// Rows that each transaction changes.
const ROWS_PER_TRANSACTION: i64 = 5;
/// Bytes of each row: several pages hold the rows of one transaction.
const ROW_BYTES: usize = 300;

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

/// Makes the tables, with rows of before the first transaction.
pub fn fill(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch("create table counter(n integer); insert into counter values(0);")?;
    transaction.execute_batch("create table rows(id integer primary key, n integer, body text);")?;
    for id in 0..ROWS {
        transaction.execute("insert into rows values(?1, 0, ?2)", params![id, body(id, 0)])?;
    }
    Ok(transaction.commit()?)
}

fn body(id: i64, n: i64) -> String {
    format!("{id}:{n};").repeat(ROW_BYTES / 8)
}

/// The rows of transaction `n`: spread over the table.
fn rows_of(n: i64) -> impl Iterator<Item = i64> {
    (0..ROWS_PER_TRANSACTION).map(move |k| (n * 37 + k * 411) % ROWS)
}

/// Transaction `n`, counted from 1. It is durable when this returns.
pub fn transact(connection: &mut Connection, n: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut update = transaction.prepare_cached("update rows set n=?2, body=?3 where id=?1")?;
        for id in rows_of(n) {
            update.execute(params![id, n, body(id, n)])?;
        }
        transaction.prepare_cached("update counter set n=?1")?.execute([n])?;
    }
    transaction.commit()
}

/// How many transactions the database has seen. Fails where it is damaged, or not as after exactly that many.
pub fn verify(connection: &Connection) -> Result<i64> {
    let verdict: String = connection.query_row("pragma integrity_check", [], |row| row.get(0))?;
    ensure!(verdict == "ok", "integrity check: {verdict}");
    let n: i64 = connection.query_row("select n from counter", [], |row| row.get(0))?;
    let mut expected = vec![0; ROWS as usize];
    for earlier in 1..=n {
        rows_of(earlier).for_each(|id| expected[id as usize] = earlier);
    }
    let mut select = connection.prepare("select id, n, body from rows order by id")?;
    let mut rows = select.query([])?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let (id, last, text): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let want = expected[seen];
        ensure!(id == seen as i64, "row {id} instead of {seen}");
        ensure!(last == want, "row {id} is of transaction {last}, not {want}, after {n}");
        ensure!(text == body(id, last), "row {id} has another body");
        seen += 1;
    }
    ensure!(seen == ROWS as usize, "{seen} rows");
    Ok(n)
}
