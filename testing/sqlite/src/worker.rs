//! SQLite in a process of its own, which can be killed alone: this program, with a subcommand that
//! people do not see.
//!
//! What it has done it says line by line through a pipe, which outlives it. A line that begins a
//! commit is there before the commit is begun; one that acknowledges it comes after SQLite has
//! returned.

use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cowshed_harness::limit;

/// What SQLite may take for a line, and to notice that the mount is gone.
const STUCK: Duration = Duration::from_secs(60);

/// A line of the worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The database is open.
    Ready,
    /// The commit of transaction n begins.
    Begins(i64),
    /// Transaction n is acknowledged.
    Done(i64),
    /// SQLite has refused transaction n: there is no room.
    Refused(i64),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Ready => write!(f, "ready 0"),
            Said::Begins(n) => write!(f, "begins {n}"),
            Said::Done(n) => write!(f, "done {n}"),
            Said::Refused(n) => write!(f, "refused {n}"),
        }
    }
}

impl FromStr for Said {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Said> {
        let (word, n) = line.split_once(' ').context("one word")?;
        let n = n.parse()?;
        Ok(match word {
            "ready" => Said::Ready,
            "begins" => Said::Begins(n),
            "done" => Said::Done(n),
            "refused" => Said::Refused(n),
            _ => bail!("an odd word: {line}"),
        })
    }
}

/// The worker's side: says a line. Errors: the other side has gone.
pub fn say(said: Said) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{said}")?)
}

/// What the worker has next.
#[derive(Debug)]
pub enum Next {
    Said(Said),
    /// Nothing until the deadline.
    Late,
    /// It has ended.
    Over,
}

/// The other side: a process that works on a database.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: PathBuf,
}

impl Worker {
    /// Starts this program with the words of a hidden subcommand, and waits until it has opened the
    /// database.
    pub fn start(this: &Path, args: &[&str], database: &Path, errors: PathBuf) -> Result<Worker> {
        let mut child = Command::new(this)
            .arg("work")
            .args(args)
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?)
            .spawn()
            .context("starting SQLite")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.context("no pipe")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            // A line that was cut is none: it has no end.
            let mut output = BufReader::new(output);
            let mut line = String::new();
            while output.read_line(&mut line).is_ok() && line.ends_with('\n') && send.send(line.clone()).is_ok() {
                line.clear();
            }
        });
        let mut worker = Worker {
            child,
            input,
            lines,
            errors,
        };
        match worker.next(None)? {
            Next::Said(Said::Ready) => Ok(worker),
            other => bail!("{other:?} instead of a database: {}", worker.complaint()),
        }
    }

    /// What it wrote of what went wrong.
    pub fn complaint(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Tells it something.
    pub fn tell(&mut self, words: &str) -> Result<()> {
        let input = self.input.as_mut().context("the pipe is closed")?;
        Ok(writeln!(input, "{words}")?)
    }

    /// Its next line. Errors: it says nothing for much too long.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Next> {
        let now = Instant::now();
        let left = deadline.map(|at| at.saturating_duration_since(now));
        match self.lines.recv_timeout(left.unwrap_or(STUCK)) {
            Ok(line) => Ok(Next::Said(line.trim_end().parse()?)),
            Err(RecvTimeoutError::Disconnected) => Ok(Next::Over),
            Err(RecvTimeoutError::Timeout) if deadline.is_some() => Ok(Next::Late),
            Err(RecvTimeoutError::Timeout) => Err(anyhow!("SQLite hangs")),
        }
    }

    /// SIGKILL. It may still be on its way out.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "SQLite had ended before it was killed, with {status}: {}",
                self.complaint()
            );
        }
        Ok(self.child.kill()?)
    }

    /// All of its messages that were not read yet, once it has ended by itself or been killed.
    pub fn rest(&mut self) -> Result<Vec<Said>> {
        self.input = None;
        let mut all = Vec::new();
        loop {
            match self.next(None)? {
                Next::Said(said) => all.push(said),
                Next::Late | Next::Over => return Ok(all),
            }
        }
    }

    /// Waits for its own end.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        let status = limit::wait(&mut self.child, STUCK)?;
        status.context("SQLite does not end: it hangs in calls to a mount, whose process may be dead")
    }

    /// Tells it that nothing more is to be done; it must end well.
    pub fn stop(mut self) -> Result<()> {
        self.input = None;
        let status = self.ended()?;
        ensure!(status.success(), "SQLite ended with {status}: {}", self.complaint());
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = limit::kill(&mut self.child);
    }
}
