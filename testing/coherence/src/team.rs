//! The worker processes, as the judge sees them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_harness::limit;
use serde::de::DeserializeOwned;

use crate::worker::{self, Order};

/// What a worker may take for anything. One that takes longer hangs.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// A worker process. It is killed with this value.
pub struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    number: u64,
}

impl Worker {
    /// `user`: whose process it is, if it is another user's.
    pub fn start(program: &Path, args: &worker::Args, user: Option<u32>) -> Result<Worker> {
        let mut command = Command::new(program);
        command
            .arg("worker")
            .args([&args.root, &args.cowshed])
            .args([args.number, args.threads, args.seed].map(|n| n.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .current_dir("/");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().context("starting a worker")?;
        let output = child.stdout.take().context("a worker's output")?;
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker {
            orders: child.stdin.take(),
            child,
            answers,
            number: args.number,
        })
    }

    pub fn order(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        let to = self.orders.as_mut().context("it has been stopped")?;
        to.write_all(line.as_bytes())
            .with_context(|| format!("worker {} is gone", self.number))
    }

    /// Waits until the order is obeyed.
    pub fn wait(&mut self) -> Result<()> {
        match self.answers.recv_timeout(ANSWER_MAX) {
            Ok(line) if line == "done" => Ok(()),
            Ok(line) => bail!("worker {}: {line}", self.number),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!(
                    "worker {} (process {}) hangs: {}",
                    self.number,
                    self.child.id(),
                    stacks(self.child.id())
                )
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = limit::wait(&mut self.child, ANSWER_MAX)?;
                bail!("worker {} ended: {status:?}", self.number)
            }
        }
    }

    /// An order whose answer is a file.
    pub fn ask<T: DeserializeOwned>(&mut self, order: &Order, file: &Path) -> Result<T> {
        self.order(order)?;
        self.wait()?;
        answer(file)
    }

    /// Ends it in order.
    pub fn stop(mut self) -> Result<()> {
        self.orders = None;
        let status = limit::wait(&mut self.child, ANSWER_MAX)?.context("a worker does not end")?;
        ensure!(status.success(), "worker {}: {status}", self.number);
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = limit::kill(&mut self.child);
    }
}

/// What a worker has written to a file.
pub fn answer<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

/// Where the threads of a process are in the kernel.
fn stacks(id: u32) -> String {
    let mut text = String::new();
    let tasks = std::fs::read_dir(format!("/proc/{id}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text += &format!("\n{} {}\n{}", read("comm").trim(), read("wchan"), read("stack"));
    }
    text
}
