//! No program is waited for without a limit: one that hangs, in the kernel perhaps, must become a
//! failure that says so.
//!
//! What is cut is the program, everything that it has started, and everything in their process
//! groups.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::sys;

/// What a program of a test may take.
pub const PROGRAM_MAX: Duration = Duration::from_secs(900);
/// What a process that was killed may take to go. One that waits in the kernel does not go at all.
const DYING_MAX: Duration = Duration::from_secs(5);
/// Looks at the processes of the machine until none is new.
const LOOKS_MAX: usize = 16;

/// As [`output_within`], with the limit of a test: for programs that answer in seconds, or hang.
pub fn output(command: &mut Command) -> Result<Output> {
    output_within(command, PROGRAM_MAX)
}

/// Runs the program to its end, in a process group of its own, with input from nowhere, and gives
/// what it printed. Errors: it cannot run, or was cut.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    // Files: a pipe ends only when all processes have closed it, one that cannot be killed too.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0);
    let status = wait_within(command, limit);
    // The command may be kept by the caller, its files not.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (stdout, stderr) = (read(&mut stdout)?, read(&mut stderr)?);
    match status {
        Ok(status) => Ok(Output { status, stdout, stderr }),
        Err(error) => {
            let said = [&stdout[..], &stderr[..]].concat();
            bail!("{error:#}. It had printed:\n{}", String::from_utf8_lossy(&said))
        }
    }
}

/// Runs the program to its end; what it prints goes where our own output goes, and our keyboard
/// stays its own. Errors: it cannot run, or was cut.
pub fn status_within(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    wait_within(command, limit)
}

fn read(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn wait_within(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    if let Some(status) = wait(&mut child, limit)? {
        return Ok(status);
    }
    let cut = cut(&child);
    let gone = match wait(&mut child, DYING_MAX)? {
        Some(_) => "",
        None => "; it cannot be killed and hangs in the kernel",
    };
    bail!("{command:?} was cut after {} s{gone}. Killed: {cut}", limit.as_secs())
}

/// Kills a program and waits for its end. Errors: it hangs in the kernel.
pub fn kill(child: &mut Child) -> Result<ExitStatus> {
    child.kill()?;
    let ended = wait(child, DYING_MAX)?;
    ended.with_context(|| format!("process {} cannot be killed and hangs in the kernel", child.id()))
}

/// Waits for a program. `None`: it has not ended in this time.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    // Readable when the program has ended: tests run thousands that take milliseconds, and pauses
    // between looks would add up.
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let left = limit.saturating_sub(started.elapsed());
        sys::wait_readable(&end, left)?;
        match child.try_wait()? {
            None if started.elapsed() < limit => {}
            ended => return Ok(ended),
        }
    }
}

/// Kills the child and what belongs to it; gives their names. All are stopped first, so that none
/// starts another one unseen.
fn cut(child: &Child) -> String {
    let mut found = BTreeMap::from([(child.id(), "the program itself".to_owned())]);
    signal(child.id(), Signal::STOP);
    for _ in 0..LOOKS_MAX {
        let belongs = |p: &Process| found.contains_key(&p.parent) || found.contains_key(&p.group);
        let new: Vec<Process> = processes()
            .into_iter()
            .filter(|p| !found.contains_key(&p.id) && belongs(p))
            .collect();
        if new.is_empty() {
            break;
        }
        for process in new {
            signal(process.id, Signal::STOP);
            found.insert(process.id, process.name);
        }
    }
    found.keys().for_each(|id| signal(*id, Signal::KILL));
    let names: Vec<String> = found.iter().map(|(id, name)| format!("{id} ({name})")).collect();
    names.join(", ")
}

fn signal(id: u32, signal: Signal) {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    // A process that is gone needs no signal.
    pid.map(|pid| rustix::process::kill_process(pid, signal));
}

struct Process {
    id: u32,
    parent: u32,
    group: u32,
    name: String,
}

fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            process(id, &std::fs::read_to_string(entry.path().join("stat")).ok()?)
        })
        .collect()
}

/// From `/proc/N/stat`: number, name in parentheses (which may hold anything), state, parent,
/// group.
fn process(id: u32, stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let mut words = tail.split(' ').skip(1);
    let mut next = || words.next()?.parse().ok();
    Some(Process {
        id,
        parent: next()?,
        group: next()?,
        name: head.split_once('(')?.1.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    fn is_alive(id: u32) -> bool {
        processes().iter().any(|p| p.id == id)
    }

    #[test]
    fn what_ends_in_time_gives_all_that_it_said() {
        let out = output_within(&mut shell("echo out; echo err >&2; exit 3"), PROGRAM_MAX).unwrap();
        assert_eq!(out.status.code(), Some(3));
        assert_eq!((&out.stdout[..], &out.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert!(status_within(&mut shell("exit 0"), PROGRAM_MAX).unwrap().success());
    }

    #[test]
    fn what_hangs_is_cut_with_all_that_it_started() {
        // A child in a group of its own, and one whose parent is gone.
        let script = "echo started; setsid sleep 1000 & echo $!; (sleep 1000 & echo $!); wait";
        let started = Instant::now();
        let error = output_within(&mut shell(script), Duration::from_secs(1)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(60));
        let text = format!("{error:#}");
        for word in ["\"sh\"", "started", "was cut after 1 s", "(sleep)"] {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
        let ids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(ids.len(), 2, "{text}");
        let deadline = Instant::now() + DYING_MAX;
        while ids.iter().any(|id| is_alive(*id)) {
            assert!(Instant::now() < deadline, "{ids:?} live on: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn the_end_is_seen_when_it_comes() {
        let mut child = shell("sleep 0.3").spawn().unwrap();
        assert!(wait(&mut child, Duration::ZERO).unwrap().is_none());
        let started = Instant::now();
        assert!(
            wait(&mut child, Duration::MAX)
                .unwrap()
                .is_some_and(|status| status.success())
        );
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(kill(&mut child).unwrap().success(), "it had ended before");
    }

    #[test]
    fn what_is_killed_is_gone() {
        let mut child = shell("exec sleep 1000").spawn().unwrap();
        assert!(!kill(&mut child).unwrap().success());
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn names_of_processes_may_hold_anything() {
        let process = process(7, "7 (a) b (c) S 3 4 5 0").unwrap();
        assert_eq!((process.parent, process.group), (3, 4));
        assert_eq!(process.name, "a) b (c");
    }
}
