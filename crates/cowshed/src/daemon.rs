//! Going to the background: the command starts itself again as the process that serves, and waits
//! until the mount answers. No fork of a process with threads, and no unsafe code.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// What the background process says when the mount answers.
const READY: &str = "ready";

/// Starts the background process, `cowshed` with this command and its arguments, and waits for its
/// word.
///
/// Errors of the background process reach the terminal from itself: until it is ready, it has our
/// standard error.
#[expect(clippy::disallowed_methods, reason = "its output has ended, and so does it")]
pub fn start_and_wait(args: &[OsString]) -> Result<u8> {
    let program = std::env::current_exe().context("finding our own program")?;
    let mut child = Command::new(program)
        // Whatever name we were called by.
        .arg0("cowshed")
        .args(args.iter().take(1))
        .arg("--daemon")
        .args(args.iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the background process")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .context("waiting for the background process")?;
    }
    if line.trim_end() == READY {
        return Ok(0);
    }
    let status = child.wait().context("waiting for the background process")?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .unwrap_or(2))
}

/// In the background process: leaves the terminal's session, so that its end is not ours.
pub fn detach() {
    // Fails only for a leader of a process group, which a spawned process is not; then nothing is
    // lost.
    let _ = rustix::process::setsid();
}

/// In the background process: tells the waiting command that the mount answers, and lets go of its
/// terminal.
pub fn say_ready() -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{READY}")?;
    stdout.flush()?;
    drop(stdout);
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/").context("leaving the current directory")
}
