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
        lacks_finding(&release()),
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
    let ostype = fs::read_to_string("/proc/sys/kernel/ostype").unwrap_or_default();
    format!("{} {}", ostype.trim(), release())
}

fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// What Linux passes on to mounts from a version on.
const SINCE: [((u32, u32), &str); 6] = [
    ((5, 14), "fallocate that zeroes"),
    ((6, 1), "O_TMPFILE"),
    ((6, 6), "the time of birth"),
    ((6, 8), "fanotify with file ids"),
    ((6, 16), "several mounts of the same files"),
    ((6, 18), "sync(1) and syncfs(2)"),
];

/// By the version alone: distributors take features over into older kernels.
fn lacks_finding(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::new("lacks", "not known: the version is not a number");
    };
    let later = SINCE.iter().filter(|(since, _)| *since > (major, minor));
    let lacks: Vec<_> = later
        .map(|((major, minor), what)| format!("{what} ({major}.{minor})"))
        .collect();
    match lacks.is_empty() {
        true => Finding::new("lacks", "nothing"),
        false => Finding::new(
            "lacks",
            format!("{}; unless its distributor added them", lacks.join(", ")),
        ),
    }
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
    fn what_an_old_kernel_lacks_is_said_by_its_version() {
        let lacks = |release| lacks_finding(release).text;
        assert_eq!(lacks("6.18.1"), "nothing");
        assert_eq!(lacks("7.0-rc1"), "nothing");
        let new = lacks("6.12.111+deb12-amd64");
        assert!(
            new.starts_with("several mounts of the same files (6.16), sync(1)"),
            "{new}"
        );
        let old = lacks("5.10.0-46-amd64");
        for (_, what) in SINCE {
            assert!(old.contains(what), "no {what} in: {old}");
        }
        assert!(lacks("unknown").contains("not known"));
    }

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
