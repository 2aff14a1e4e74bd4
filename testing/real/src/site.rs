//! The volume of a job while it is mounted, by us or by the kernel.

use std::path::Path;

use anyhow::{Context as _, Result};
use cowshed_harness::{KernelVolume, Mounted};

use crate::cowshed::Mount;
use crate::direct::Place;

enum Mounting {
    Ours(Mount),
    Kernels(Mounted),
}

pub struct Site<'v> {
    volume: &'v KernelVolume,
    options: String,
    by_kernel: bool,
    /// `None` only while it is mounted anew, and after that has failed.
    mounting: Option<Mounting>,
}

impl<'v> Site<'v> {
    /// Mounts.
    pub fn new(volume: &'v KernelVolume, options: &str, by_kernel: bool) -> Result<Self> {
        let mut site = Self {
            volume,
            options: options.to_owned(),
            by_kernel,
            mounting: None,
        };
        site.mount()?;
        Ok(site)
    }

    fn mount(&mut self) -> Result<()> {
        let (volume, options) = (self.volume, &self.options);
        self.mounting = Some(match self.by_kernel {
            true => Mounting::Kernels(volume.mount_with(options)?),
            false => Mounting::Ours(Mount::new(volume.images(), volume.dir(), options)?),
        });
        Ok(())
    }

    pub fn path(&self) -> &Path {
        match self.mounting.as_ref().expect("a mount that fails ends the job") {
            Mounting::Ours(mount) => mount.path(),
            Mounting::Kernels(mounted) => mounted.dir(),
        }
    }

    /// An error if the daemon logged anything.
    pub fn unmount(&mut self) -> Result<()> {
        match self.mounting.take().context("not mounted")? {
            Mounting::Ours(mount) => mount.unmount(),
            Mounting::Kernels(mounted) => mounted.unmount(),
        }
    }
}

impl Place for Site<'_> {
    fn dir(&self) -> &Path {
        self.path()
    }

    fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }
}
