//! An image that is not complete when the process ends: nothing of it is left.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cowshed_harness::limit;
use rustix::process::{Pid, Signal, kill_process};

use super::{noise, source};
use crate::support::{COMMAND_MAX, COWSHED, run, shortly};

fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

/// Whether the process has a file of this directory open of that many bytes: the output.
fn writes_in(child: &Child, dir: &Path, bytes: u64) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", child.id())) else {
        return false;
    };
    open.filter_map(|entry| Some(entry.ok()?.path())).any(|path| {
        let is_there = fs::read_link(&path).is_ok_and(|link| link.parent() == Some(dir));
        is_there && fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() >= bytes)
    })
}

/// A fast run may end before the signal comes.
const TRIES_MAX: usize = 20;

/// Sends a signal to a command that writes its output. The exit code with which it ended, or none
/// where it was the signal; `None` where it had ended before.
fn interrupt(dir: &Path, line: &str, signal: Signal) -> Option<Option<i32>> {
    // What ran the tests may ignore SIGHUP, as nohup does, or SIGINT, as a shell does for what it
    // runs in the background; programs inherit that.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP,INT,TERM", COWSHED])
        .args(line.split_whitespace())
        .current_dir(dir)
        .stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let out = dir.join(line.split_whitespace().last().unwrap());
    shortly("the output is begun", || {
        writes_in(&child, dir, 1) && out.exists() == line.ends_with("image") || child.try_wait().unwrap().is_some()
    });
    if child.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let status = limit::wait(&mut child, COMMAND_MAX).unwrap().expect("it ends");
    if status.success() {
        if !line.ends_with("image") {
            fs::remove_file(out).unwrap();
        }
        return None;
    }
    Some(status.code())
}

#[test]
fn interrupted_outputs_leave_nothing() {
    let (dir, root) = source();
    fs::write(root.join("large"), noise(150 << 20)).unwrap();
    let dir = dir.path().canonicalize().unwrap();
    run("build -q --from {} {}", &[&root, &dir.join("image")]).ok();
    for line in [
        "build -q --from root new",
        "build -q --from root image",
        "mkfs -q --rootdir root new",
        "export tar image:/ new",
    ] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
            let ended = (0..TRIES_MAX).find_map(|_| interrupt(&dir, line, signal));
            assert_eq!(ended, Some(None), "{line}: {signal:?}: it always ended before");
            assert_eq!(names(&dir), ["image", "root"], "{line}: {signal:?}");
        }
    }
    // What was there is as it was.
    run("check -q {}", &[&dir.join("image")]).ok();
}
