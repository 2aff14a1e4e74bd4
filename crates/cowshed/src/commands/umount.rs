//! `cowshed umount`: takes the mount away and waits until its process has let go of the volume.
//!
//! umount(2) does not tell whether the last commit came to be. So everything is synced first, and
//! that tells.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed_device::{FileDevice, OpenMode};
use cowshed_fuse::Mountpoint;

use crate::commands::sync;
use crate::mounts::join;

#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Mount points
    #[arg(required = true)]
    pub mountpoints: Vec<PathBuf>,
    /// Take it out of the tree now; it ends when no program uses it any more
    #[arg(short, long)]
    pub lazy: bool,
}

/// How long the serving process may take to write what is left. Slow disks and large memories need
/// minutes.
const WAIT_MAX: Duration = Duration::from_secs(600);
const WAIT_STEP: Duration = Duration::from_millis(5);
/// After so long it is said why nothing seems to happen.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &UmountArgs) -> Result<u8> {
    for mountpoint in &args.mountpoints {
        one(mountpoint, args.lazy).with_context(|| mountpoint.display().to_string())?;
    }
    Ok(0)
}

fn one(mountpoint: &Path, lazy: bool) -> Result<()> {
    let mountpoint = mountpoint.canonicalize().unwrap_or_else(|_| mountpoint.into());
    let Some(entry) = find(&mountpoint)? else {
        bail!("not mounted")
    };
    if !entry.is_ours() {
        bail!(
            "{} is mounted there, not a file system of ours: use umount(8)",
            entry.kind
        );
    }
    // A loop device that the mount attached goes with it.
    let backing = entry.backing_file();
    let synced = match lazy {
        true => Ok(()),
        false => sync_what_answers(&mountpoint),
    };
    let number = mount_number(&mountpoint)?;
    let unmounted = Mountpoint::existing(mountpoint).unmount(lazy).map_err(Into::into);
    let ended = match lazy || entry.read_only {
        true => unmounted,
        false => unmounted.and_then(|()| wait_for_process(&entry, backing.as_deref(), number.as_deref())),
    };
    match (synced, ended) {
        (Err(lost), Ok(())) => Err(lost).context("unmounted, but not everything could be written"),
        (Err(lost), Err(error)) => {
            // An error of write-back is reported once: it must not get lost behind the other one.
            eprintln!("cowshed: not everything could be written: {lost:#}");
            Err(error)
        }
        (Ok(()), ended) => ended,
    }
}

/// Returns when what was mounted is free for others. `backing`: what its device, if it had one, was
/// made of.
fn wait_for_process(entry: &Entry, backing: Option<&Path>, number: Option<&str>) -> Result<()> {
    if let Some(elsewhere) = number.map(mounted_elsewhere).transpose()?.flatten() {
        bail!("unmounted here, but the volume is still mounted on {elsewhere}");
    }
    if let Some(image) = backing {
        wait_until_free(image, number)?;
    }
    // A loop device that we attached goes with the mount, and its number may be in use again by
    // now. One that still has the same backing file is the user's own, and then the process held
    // it.
    let source = PathBuf::from(&entry.source);
    if source.is_absolute() && source.exists() && entry.backing_file().as_deref() == backing {
        wait_until_free(&source, number)?;
    }
    Ok(())
}

/// Waits until no process holds the volume: the mount's process is gone, and its data is on disk.
/// Or until a process says that it serves other mounts of the volume, and not this one, whose
/// device had this number.
fn wait_until_free(image: &Path, number: Option<&str>) -> Result<()> {
    let started = Instant::now();
    let mut has_said_why = false;
    loop {
        if let Some(number) = number
            && let Some(served) = join::sessions(image)
            && !served.is_empty()
        {
            if !served.iter().any(|other| other == number) {
                return Ok(());
            }
            // It is ending: no need to wait for the lock.
            std::thread::sleep(WAIT_STEP);
            if started.elapsed() < WAIT_MAX {
                continue;
            }
        }
        match FileDevice::open(image, OpenMode::ReadWrite) {
            Err(cowshed_device::Error::Busy { .. }) if started.elapsed() < WAIT_MAX => {
                std::thread::sleep(WAIT_STEP);
                if !has_said_why && started.elapsed() > PATIENCE {
                    eprintln!(
                        "cowshed: {}: unmounted; waiting for its process, which writes what is left, or serves \
                         another name space's mount",
                        image.display()
                    );
                    has_said_why = true;
                }
            }
            Err(error @ cowshed_device::Error::Busy { .. }) => {
                return Err(error).context("unmounted, but its process still holds the volume");
            }
            // Gone, or not ours to open: there is nothing to wait for.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}

/// A mount whose process is gone, or that lets only its owner in, cannot be asked: nothing is known
/// of it, then.
fn sync_what_answers(mountpoint: &Path) -> std::io::Result<()> {
    match sync::mount_of(mountpoint) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOTCONN)) => Ok(()),
        synced => synced,
    }
}

/// The device number of what is mounted (last) on a directory, as /proc/self/mountinfo has it.
fn mount_number(mountpoint: &Path) -> Result<Option<String>> {
    let mut found = None;
    for line in mount_info()?.lines() {
        if let Some((number, target)) = number_and_target(line)
            && Path::new(&target) == mountpoint
        {
            found = Some(number.to_owned());
        }
    }
    Ok(found)
}

/// Another mount point (a bind mount) of the same file system.
fn mounted_elsewhere(number: &str) -> Result<Option<String>> {
    let table = mount_info()?;
    let mut mounts = table.lines().filter_map(number_and_target);
    Ok(mounts.find(|(other, _)| *other == number).map(|(_, target)| target))
}

fn mount_info() -> Result<String> {
    std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")
}

fn number_and_target(line: &str) -> Option<(&str, String)> {
    let mut fields = line.split(' ').skip(2);
    let number = fields.next()?;
    Some((number, unescape(fields.nth(1)?)))
}

/// A line of the mount table.
struct Entry {
    source: String,
    kind: String,
    read_only: bool,
}

impl Entry {
    fn is_ours(&self) -> bool {
        self.kind == "fuse.cowshed" || self.kind == "fuseblk.cowshed" || self.kind == "fuseblk"
    }

    /// The file behind a source that is a loop device.
    fn backing_file(&self) -> Option<PathBuf> {
        let name = self.source.strip_prefix("/dev/loop")?;
        let backing = std::fs::read_to_string(format!("/sys/block/loop{name}/loop/backing_file")).ok()?;
        Some(PathBuf::from(backing.trim_end()))
    }
}

/// The topmost mount on a directory.
fn find(mountpoint: &Path) -> Result<Option<Entry>> {
    let table = std::fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let line = table.lines().rfind(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|target| Path::new(&unescape(target)) == mountpoint)
    });
    Ok(line.map(|line| {
        let mut fields = line.split(' ');
        let source = unescape(fields.next().unwrap_or_default());
        let kind = fields.nth(1).unwrap_or_default().to_owned();
        let read_only = fields
            .next()
            .unwrap_or_default()
            .split(',')
            .any(|option| option == "ro");
        Entry {
            source,
            kind,
            read_only,
        }
    }))
}

/// Undoes the octal escapes of the mount table (blanks, tabs, newlines, backslashes).
fn unescape(field: &str) -> String {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest
            .get(at + 1..at + 4)
            .and_then(|octal| u8::from_str_radix(octal, 8).ok())
        {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::{number_and_target, unescape};

    #[test]
    fn mount_table_escapes_are_undone() {
        assert_eq!(unescape("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
        assert_eq!(unescape("plain\\"), "plain\\");
        let line = "30 22 0:50 / /a\\040b rw - fuse x rw";
        assert_eq!(number_and_target(line), Some(("0:50", "/a b".into())));
    }
}
