//! Mounting as an ordinary user: `fusermount3` is set-user-id, mounts for us, and passes the device
//! back over a socket whose number it finds in `_FUSE_COMMFD`.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{MountError, MountOptions, flags, fuse_options};
use crate::sys;
use crate::transport::dev::Device;

const PROGRAM: &str = "fusermount3";

/// The `-o` argument.
pub(super) fn options(options: &MountOptions) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut words: Vec<String> = flags(options).iter().map(|f| f.1.to_owned()).collect();
    words.push(format!("fsname={}", escape(&options.source)));
    words.push(format!("subtype={}", escape(&options.subtype)));
    words.join(",") + &fuse_options(options)
}

#[expect(
    clippy::disallowed_methods,
    reason = "it hangs only where the kernel does, and then there is nothing else to do"
)]
pub(super) fn mount(target: &Path, options: &str) -> Result<Device, MountError> {
    let failed = |error: std::io::Error| MountError::Helper(error.to_string());
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    sys::set_inheritable(theirs.as_fd()).map_err(failed)?;
    let child = Command::new(PROGRAM)
        .args(["-o", options, "--"])
        .arg(target)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => MountError::NoHelper,
            _ => failed(error),
        })?;
    // Ours must be the only end left, or a helper that fails would leave us waiting.
    drop(theirs);
    let fd = sys::receive_fd(ours.as_fd()).map_err(failed)?;
    let output = child.wait_with_output().map_err(failed)?;
    match fd {
        Some(fd) if output.status.success() => Ok(Device::from(fd)),
        _ => Err(why_refused(said(&output))),
    }
}

/// The helper's own words, or what is wrong with the device where they are about it.
fn why_refused(said: String) -> MountError {
    let is_of_device = said.contains("/dev/fuse") || said.contains("device not found");
    match Device::open() {
        Err(error) if is_of_device => MountError::Device(error),
        _ => MountError::Helper(said),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it hangs only where the kernel does, and then there is nothing else to do"
)]
pub(super) fn unmount(target: &Path, lazy: bool) -> Result<(), MountError> {
    let output = Command::new(PROGRAM)
        .args(if lazy {
            &["-u", "-q", "-z", "--"][..]
        } else {
            &["-u", "--"]
        })
        .arg(target)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| MountError::Helper(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(MountError::Helper(said(&output)))
    }
}

fn said(output: &std::process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim().trim_start_matches("fusermount3: ");
    if text.is_empty() {
        output.status.to_string()
    } else {
        text.to_owned()
    }
}
