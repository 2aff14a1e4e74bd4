//! SQLite with synchronous=FULL: a row whose insertion was acknowledged is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::limit;
use cowshed_model::tree::Tree;

use crate::daemon::run;

/// Databases, with their journal modes. In the mode `delete` a commit is durable with
/// synchronous=EXTRA only: FULL does not sync the directory after the journal's removal.
const DATABASES: [(&str, &str, &str); 4] = [
    ("wal.db", "wal", "full"),
    ("truncate.db", "truncate", "full"),
    ("persist.db", "persist", "full"),
    ("delete.db", "delete", "extra"),
];

/// One statement for the n-th row; its content follows from n.
fn insert(n: u64) -> String {
    format!(
        "insert into t values({n}, printf('%0{}d', {n}));\nselect {n};\n",
        100 + n % 900
    )
}

/// Whether a process still serves the mount. Asking for its space always takes a request.
fn answers(root: &Path) -> bool {
    rustix::fs::statvfs(root).is_ok()
}

/// The rows of each database.
#[derive(Debug, Default)]
pub struct Rows {
    acknowledged: [AtomicU64; DATABASES.len()],
}

impl Rows {
    /// Inserts into all databases until the mount fails.
    pub fn work(&self, root: &Path) -> Result<()> {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..DATABASES.len())
                .map(|index| scope.spawn(move || self.work_on(root, index)))
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })
    }

    fn work_on(&self, root: &Path, index: usize) -> Result<()> {
        let (name, ..) = DATABASES[index];
        // Line by line, so that an acknowledgement is seen when it is given.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "sqlite3", "-batch", "-bail"])
            .arg(root.join(name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting sqlite3")?;
        let result = self.converse(&mut child, root, index);
        limit::kill(&mut child)?;
        result
    }

    fn converse(&self, child: &mut Child, root: &Path, index: usize) -> Result<()> {
        let (_, journal, synchronous) = DATABASES[index];
        let mut input = child.stdin.take().context("no pipe")?;
        let mut output = BufReader::new(child.stdout.take().context("no pipe")?);
        let setup = format!(
            "pragma journal_mode={journal};\npragma synchronous={synchronous};\n\
             create table if not exists t(n integer primary key, b text);\nselect 'ready';\n"
        );
        if input.write_all(setup.as_bytes()).is_err() {
            return Ok(());
        }
        let mut n = self.acknowledged[index].load(Ordering::Relaxed) + 1;
        let mut line = String::new();
        loop {
            line.clear();
            // The program ends when the mount is gone.
            if !matches!(output.read_line(&mut line), Ok(len) if len > 0) {
                return Ok(());
            }
            match line.trim() {
                "ready" => {}
                // Where the directory cannot be opened any more, SQLite does not sync the removal
                // of a journal, and says that all is well. The process was there when it was opened
                // if it is there now.
                said if said.parse() == Ok(n) && (journal != "delete" || answers(root)) => {
                    self.acknowledged[index].store(n, Ordering::Relaxed);
                    n += 1;
                }
                said if said.parse() == Ok(n) => return Ok(()),
                _ => continue,
            }
            if input.write_all(insert(n).as_bytes()).is_err() {
                return Ok(());
            }
        }
    }

    /// Opens copies of the databases that were found: each recovers, and has all rows that were
    /// acknowledged.
    pub fn settle(&self, found: &Tree, scratch: &Path) -> Result<()> {
        let dir = tempfile::tempdir_in(scratch)?;
        for (path, node) in found {
            if DATABASES.iter().any(|(name, ..)| path.starts_with(name)) {
                std::fs::write(dir.path().join(path), &*node.content)?;
            }
        }
        for ((name, ..), acknowledged) in DATABASES.iter().zip(&self.acknowledged) {
            let known = acknowledged.load(Ordering::Relaxed);
            let rows = rows(&dir.path().join(name), known).with_context(|| (*name).to_owned())?;
            acknowledged.store(rows, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Rows that were acknowledged, in all.
    pub fn steps(&self) -> u64 {
        self.acknowledged.iter().map(|rows| rows.load(Ordering::Relaxed)).sum()
    }
}

/// How many rows there are: all from the first to the last, each as it was inserted.
fn rows(database: &Path, acknowledged: u64) -> Result<u64> {
    if acknowledged == 0 && !database.exists() {
        return Ok(0);
    }
    let ask = |sql: &str| run(Path::new("sqlite3"), &[&database.to_string_lossy(), sql]);
    let verdict = ask("pragma integrity_check")?;
    ensure!(verdict.trim() == "ok", "integrity_check: {verdict}");
    if acknowledged == 0 && ask("select count(*) from sqlite_master")?.trim() == "0" {
        return Ok(0);
    }
    let counts = ask("select count(*), coalesce(max(n), 0), \
                      coalesce(sum(b = printf('%0' || (100 + n % 900) || 'd', n)), 0) from t")?;
    let counts: Vec<u64> = counts.trim().split('|').map(str::parse).collect::<Result<_, _>>()?;
    let [count, last, right] = counts[..] else {
        anyhow::bail!("an odd answer: {counts:?}")
    };
    ensure!(
        count == last && right == count,
        "{count} rows, the last is {last}, {right} are right"
    );
    ensure!(
        last == acknowledged || last == acknowledged + 1,
        "{last} rows, but {acknowledged} were acknowledged"
    );
    Ok(last)
}
