//! What failed, once more at the end: the output of a run of all tests is thousands of lines, and
//! its last page is what a reader of CI sees first.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cowshed_harness::limit;

/// Lines shown of one failure.
const LINES_MAX: usize = 12;
/// A process that a test left behind holds the output open; its end is not waited for.
const END_MAX: Duration = Duration::from_secs(5);

/// Runs tests, passes their output on, and fails with a list of what failed and why.
pub fn run_tests_within(limit: Duration, title: &str, command: &mut Command) -> Result<()> {
    println!("== {title}");
    let started = std::time::Instant::now();
    let ended = run_shown(limit, command, |line| println!("{line}"));
    println!("== {title}: {:.1} s", started.elapsed().as_secs_f64());
    let (status, report) = ended.with_context(|| title.to_owned())?;
    if status.success() {
        return Ok(());
    }
    bail!("{title} failed: {command:?}: {status}\n{}", report.join("\n"))
}

/// What came of tests that ran beside others.
pub struct Kept {
    pub output: Vec<u8>,
    /// Why they failed.
    pub failed: Option<String>,
}

/// Runs tests, and keeps what they print. What libtest says of a test that takes long is printed at
/// once, too: the test may hang.
pub fn keep_output_within(limit: Duration, command: &mut Command) -> Kept {
    let output = Arc::new(Mutex::new(Vec::new()));
    let kept = output.clone();
    let ended = run_shown(limit, command, move |line| {
        if line.contains(" has been running for over ") {
            println!("{line}");
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(line.as_bytes());
        kept.push(b'\n');
    });
    let failed = match ended {
        Ok((status, _)) if status.success() => None,
        Ok((status, report)) => Some(format!("{status}\n{}", report.join("\n"))),
        Err(error) => Some(format!("{error:#}")),
    };
    let output = std::mem::take(&mut *output.lock().unwrap_or_else(PoisonError::into_inner));
    Kept { output, failed }
}

/// Runs tests, shows each line that they print, and returns those about failures.
fn run_shown(
    limit: Duration,
    command: &mut Command,
    show: impl FnMut(&str) + Send + 'static,
) -> Result<(ExitStatus, Vec<String>)> {
    let (reader, writer) = std::io::pipe()?;
    let ended = read(reader, show);
    command.stderr(writer.try_clone()?);
    let status = limit::status_within(command.stdout(writer), limit);
    // The command is the caller's and would hold the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let report = ended.recv_timeout(END_MAX).unwrap_or_default();
    Ok((status?, report))
}

/// Shows all lines, and sends those about failures when the output ends.
fn read(reader: PipeReader, mut show: impl FnMut(&str) + Send + 'static) -> Receiver<Vec<String>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut report = Report::default();
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line);
            show(&line);
            report.line(&line);
        }
        let _ = send.send(report.lines);
    });
    receive
}

#[derive(Default)]
struct Report {
    lines: Vec<String>,
    /// Lines that the failure being read may still give.
    left: usize,
}

impl Report {
    /// libtest prints `---- NAME stdout ----`, then what the test printed, and after the last one
    /// the names alone.
    fn line(&mut self, line: &str) {
        if line.starts_with("---- ") {
            self.left = LINES_MAX;
        } else if line == "failures:" || line.starts_with("stack backtrace:") || line.starts_with("test result:") {
            self.left = 0;
        }
        if self.left > 0 && !line.is_empty() {
            self.lines.push(line.to_owned());
            self.left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_again_at_the_end() {
        let output = "running 2 tests\\ntest a ... ok\\ntest b ... FAILED\\n\\nfailures:\\n\\n---- b stdout ----\\n\
             thread 'b' panicked at x.rs:1:1:\\nleft is not right\\nstack backtrace:\\n 0: begin\\n\\nfailures:\\n    b\\n";
        let mut command = Command::new("sh");
        command.args(["-c", &format!("printf \"{output}\"; exit 101")]);
        let error = run_tests_within(Duration::from_secs(60), "tests", &mut command).unwrap_err();
        let text = format!("{error:#}");
        let told = "\n---- b stdout ----\nthread 'b' panicked at x.rs:1:1:\nleft is not right";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn kept_output_has_all_that_was_printed_and_says_what_failed() {
        let script = "echo one; echo two >&2; echo ---- b stdout ----; echo why; exit $0";
        let run = |code: &str| {
            let mut command = Command::new("sh");
            keep_output_within(Duration::from_secs(60), command.args(["-c", script, code]))
        };
        let (passed, failed) = (run("0"), run("3"));
        assert!(passed.failed.is_none());
        let text = String::from_utf8(failed.output).unwrap();
        assert_eq!(text, String::from_utf8(passed.output).unwrap());
        assert!(["one\n", "two\n"].iter().all(|line| text.contains(line)), "{text}");
        let why = failed.failed.unwrap();
        assert!(why.ends_with("\n---- b stdout ----\nwhy"), "{why}");
    }

    #[test]
    fn output_held_open_by_what_a_test_left_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & exit 0"]);
        let started = std::time::Instant::now();
        run_tests_within(Duration::from_secs(60), "tests", &mut command).unwrap();
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}
