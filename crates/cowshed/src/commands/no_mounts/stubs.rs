//! What stands for the modules of commands on mounts where these are not compiled.

use std::fs::File;
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;

use super::REFUSAL;
use crate::commands::receive::player::{Options, Outcome};

#[derive(Args, Debug)]
pub struct NoArgs {}

pub fn run(_: &NoArgs) -> Result<u8> {
    bail!(REFUSAL)
}

pub mod mount {
    pub use super::{NoArgs as MountArgs, run};
}

pub mod umount {
    pub use super::{NoArgs as UmountArgs, run};
}

pub mod doctor {
    pub use super::{NoArgs as DoctorArgs, run};
}

/// For `receive`. Errors: always.
pub fn receive(_input: File, dir: &Path, _mount: Option<&Path>, _: &Options<'_>) -> Result<Outcome> {
    bail!(
        "{}: no mount, and mounts need Linux; receive into an image: IMAGE:/PATH",
        dir.display()
    )
}
