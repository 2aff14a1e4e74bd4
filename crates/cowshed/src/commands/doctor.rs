//! `cowshed doctor`: what this machine lets mounts be, and what would make them faster.

use std::fs::{self, OpenOptions};
use std::io;

use anyhow::Result;
use clap::Args;
use cowshed_fuse::{MountError, Unavailable};

#[derive(Args, Debug)]
pub struct DoctorArgs {}

/// One line of the report.
struct Finding {
    about: &'static str,
    text: String,
    /// No mount is possible.
    is_fatal: bool,
}

impl Finding {
    fn new(about: &'static str, text: impl Into<String>) -> Self {
        Self {
            about,
            text: text.into(),
            is_fatal: false,
        }
    }
}

pub fn run(_args: &DoctorArgs) -> Result<u8> {
    let is_root = rustix::process::geteuid().is_root();
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map(drop);
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"]
        .into_iter()
        .find(|path| fs::metadata(path).is_ok());
    let findings = [
        Finding::new("kernel", kernel()),
        device_finding(device),
        helper_finding(helper, is_root),
        transport_finding(&cowshed_fuse::uring_available()),
        sync_finding(is_root),
    ];
    for finding in &findings {
        crate::people::say(format_args!("{:<12} {}", finding.about, finding.text));
    }
    Ok(u8::from(findings.iter().any(|finding| finding.is_fatal)))
}

fn kernel() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim())
}

fn device_finding(opened: io::Result<()>) -> Finding {
    match opened {
        Ok(()) => Finding::new("/dev/fuse", "can be opened: volumes can be mounted"),
        Err(error) => Finding {
            is_fatal: true,
            ..Finding::new("/dev/fuse", MountError::Device(error).to_string())
        },
    }
}

fn helper_finding(helper: Option<&str>, is_root: bool) -> Finding {
    match (helper, is_root) {
        (Some(path), _) => Finding::new("fusermount3", format!("{path}: ordinary users can mount")),
        (None, true) => Finding::new("fusermount3", "not installed: only root can mount (package fuse3)"),
        (None, false) => Finding {
            is_fatal: true,
            ..Finding::new("fusermount3", MountError::NoHelper.to_string())
        },
    }
}

fn transport_finding(uring: &Result<(), Unavailable>) -> Finding {
    let text = match uring {
        Ok(()) => "io_uring: new mounts use it (-o transport=auto)".to_owned(),
        Err(why) => format!("/dev/fuse, which is slower with many small files than io_uring; {why}"),
    };
    Finding::new("transport", text)
}

fn sync_finding(is_root: bool) -> Finding {
    let text = match is_root {
        true => "sync(1) reaches mounts on Linux 6.18 and later, and umount waits until all is on disk",
        false => "sync(1) does not reach mounts of ordinary users: use fsync, or `cowshed sync`",
    };
    Finding::new("sync", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hinders_is_said_with_what_helps() {
        let denied = device_finding(Err(io::Error::from_raw_os_error(libc::EACCES)));
        assert!(denied.is_fatal && denied.text.contains("chmod"), "{}", denied.text);
        assert!(!device_finding(Ok(())).is_fatal);
        assert!(helper_finding(None, false).is_fatal && !helper_finding(None, true).is_fatal);
        let off = transport_finding(&Err(Unavailable::NotEnabled));
        assert!(off.text.contains("enable_uring") && !off.is_fatal, "{}", off.text);
        assert!(transport_finding(&Ok(())).text.starts_with("io_uring"));
    }
}
