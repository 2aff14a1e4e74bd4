//! Operands of the commands that read: `IMAGE:/PATH` each, or one image and then paths in it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cowshed::Volume;
use cowshed::formats::Format;

use super::files::Base;
use super::offline::image_of;
use crate::devices::{self, ReadArgs, format_at};
use crate::people::printable;

/// An image, and the paths in it that are asked for.
pub struct Named {
    image: PathBuf,
    pub paths: Vec<PathBuf>,
    /// Before paths that are shown; `None`: the image was named apart.
    pub prefix: Option<String>,
}

/// The operands by image, in their order. Without paths, those of `default`.
pub fn named(base: &Base, target: &Path, paths: &[PathBuf], default: &[PathBuf]) -> Result<Vec<Named>> {
    if let Base::Shell { image, dir, .. } = base {
        let all = std::iter::once(target).chain(paths.iter().map(|path| &**path));
        return Ok(vec![Named {
            image: image.clone(),
            paths: all.map(|path| dir.join(path)).collect(),
            prefix: Some(String::new()),
        }]);
    }
    if image_of(target).is_none() {
        let paths = if paths.is_empty() { default } else { paths };
        return Ok(vec![Named {
            image: target.to_owned(),
            paths: paths.to_vec(),
            prefix: None,
        }]);
    }
    let mut all: Vec<Named> = Vec::new();
    for operand in std::iter::once(target).chain(paths.iter().map(|path| &**path)) {
        let Some((image, inside)) = image_of(operand) else {
            bail!("'{}': not in an image: name it as IMAGE:/PATH", printable(operand));
        };
        let inside = PathBuf::from(OsStr::from_bytes(inside));
        match all.last_mut() {
            Some(last) if last.image == image => last.paths.push(inside),
            _ => all.push(Named {
                image: image.to_owned(),
                paths: vec![inside],
                prefix: Some(format!("{}:", image.display())),
            }),
        }
    }
    Ok(all)
}

impl Named {
    /// Opens the volume to be read. Named in the path, its root is the top level.
    pub fn open(&self, args: &ReadArgs) -> Result<Volume> {
        let chooses = args.options.iter().any(|option| option.contains("subvol"));
        if self.prefix.is_none() || chooses || format_at(&self.image) == Format::Xfs {
            return devices::open_files(&self.image, args);
        }
        let mut args = args.clone();
        args.options.push("subvolid=5".to_owned());
        devices::open_files(&self.image, &args)
    }

    /// A path as the user named it.
    pub fn shown(&self, path: &Path) -> PathBuf {
        match &self.prefix {
            None => path.to_owned(),
            Some(prefix) => {
                let mut shown = std::ffi::OsString::from(prefix);
                shown.push(path);
                shown.into()
            }
        }
    }

    /// Says what is wrong with a path, as coreutils do where the path was named so.
    pub fn complain(&self, command: &str, what: &str, path: &Path, error: &cowshed::Error) {
        match self.prefix {
            None => crate::people::warn(format_args!("cowshed: {error}")),
            Some(_) => {
                let error = io::Error::from_raw_os_error(error.errno());
                let text = super::files::reason(&error);
                let path = printable(self.shown(path));
                match what {
                    "" => crate::people::warn(format_args!("cowshed {command}: {path}: {text}")),
                    what => crate::people::warn(format_args!("cowshed {command}: cannot {what} '{path}': {text}")),
                }
            }
        }
    }

    /// The exit code where a path was complained about.
    pub fn failure_code(&self) -> u8 {
        if self.prefix.is_none() { 2 } else { 1 }
    }
}
