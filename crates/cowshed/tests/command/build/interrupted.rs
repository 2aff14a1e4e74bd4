//! An image that is not complete when the process ends: nothing of it is left.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cowshed_harness::limit;

use super::{noise, source};
use crate::support::{COMMAND_MAX, COWSHED, eventually, run};

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
        for signal in ["INT", "TERM", "HUP", "KILL"] {
            let mut command = Command::new(COWSHED);
            command
                .args(line.split_whitespace())
                .current_dir(&dir)
                .stdin(Stdio::null());
            let mut child = command.spawn().unwrap();
            eventually("the output is begun", || {
                let out = dir.join(line.split_whitespace().last().unwrap());
                writes_in(&child, &dir, 1) && out.exists() == line.ends_with("image")
                    || child.try_wait().unwrap().is_some()
            });
            cowshed_harness::run("kill", &[format!("-{signal}"), child.id().to_string()]).unwrap();
            let status = limit::wait(&mut child, COMMAND_MAX).unwrap().expect("it ends");
            assert_eq!(status.code(), None, "{line}: {signal}: it had ended before");
            assert_eq!(names(&dir), ["image", "root"], "{line}: {signal}");
        }
    }
    // What was there is as it was.
    run("check -q {}", &[&dir.join("image")]).ok();
}
