//! A mount of the kernel.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::{run, run_raw};

/// Mounted while this value lives.
#[derive(Debug)]
pub struct KernelMount {
    dir: PathBuf,
    mounted: bool,
}

impl KernelMount {
    /// `mount -t fs_type -o options devices[0] dir`; further devices are given as `device=`
    /// (btrfs).
    pub fn new(fs_type: &str, devices: &[&Path], dir: &Path, options: &str) -> Result<KernelMount> {
        let mut all = OsString::from(options);
        for device in devices.get(1..).unwrap_or_default() {
            if !all.is_empty() {
                all.push(",");
            }
            all.push("device=");
            all.push(device);
        }
        let mut args: Vec<OsString> = vec!["-t".into(), fs_type.into()];
        if !all.is_empty() {
            args.extend(["-o".into(), all]);
        }
        args.extend([devices[0].into(), dir.into()]);
        run("mount", &args)?;
        Ok(KernelMount {
            dir: dir.to_owned(),
            mounted: true,
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts; an error if something still uses the mount.
    pub fn unmount(mut self) -> Result<()> {
        self.unmount_now()
    }

    fn unmount_now(&mut self) -> Result<()> {
        let mut tries = 0;
        loop {
            let output = run_raw("umount", &[&self.dir])?;
            if output.status.success() {
                self.mounted = false;
                return Ok(());
            }
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            tries += 1;
            if !complaint.contains("busy") || tries == 50 {
                anyhow::bail!("cannot unmount {}: {complaint}", self.dir.display());
            }
            // A file just closed may still be on its way out.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        if let Err(error) = self.unmount_now() {
            let _ = run_raw("umount", &["-l".as_ref(), self.dir.as_os_str()]);
            if std::thread::panicking() {
                eprintln!("{error:#}");
            } else {
                panic!("{error:#}");
            }
        }
    }
}
