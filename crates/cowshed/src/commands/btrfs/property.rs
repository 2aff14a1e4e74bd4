//! `btrfs property`: the read-only flag of subvolumes, the label of volumes, the compression of
//! files and directories.

use std::io::{Error, Result as IoResult};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use std::ffi::OsString;

use super::filesystem::label;
use super::place::{Found, Images, Place};
use super::say::{error, print, reason, warning};
use crate::commands::offline::image_of;
use crate::sys::xattr;

#[derive(Args, Debug)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct PropertyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Args, Debug)]
struct Object {
    /// What the object is taken for: inode, subvol, filesystem or device, or their first letters
    #[arg(short, value_name = "TYPE")]
    ty: Option<String>,
    /// A file, directory or device
    object: PathBuf,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Show a property of an object, or all
    Get {
        #[command(flatten)]
        object: Object,
        /// ro, label or compression
        name: Option<String>,
    },
    /// Change a property of an object
    Set {
        #[command(flatten)]
        object: Object,
        /// Make a received subvolume writable: it is a received one no more
        #[arg(short)]
        force: bool,
        /// ro, label or compression
        name: String,
        /// true or false; a label; zlib, lzo, zstd, no, or nothing
        value: OsString,
    },
    /// List the properties that an object has
    List {
        #[command(flatten)]
        object: Object,
    },
}

/// What an object can be taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inode,
    Subvolume,
    Filesystem,
    Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    ReadOnly,
    Label,
    Compression,
}

const ALL: [Property; 3] = [Property::ReadOnly, Property::Label, Property::Compression];
const COMPRESSION: &str = "btrfs.compression";
/// The longest value of that attribute, and some.
const VALUE_BYTES_MAX: usize = 256;

impl Property {
    fn name(self) -> &'static str {
        match self {
            Property::ReadOnly => "ro",
            Property::Label => "label",
            Property::Compression => "compression",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Property::ReadOnly => "read-only status of a subvolume",
            Property::Label => "label of the filesystem",
            Property::Compression => "compression algorithm for the file or directory",
        }
    }

    fn is_of(self, kinds: &[Kind]) -> bool {
        let fitting: &[Kind] = match self {
            Property::ReadOnly => &[Kind::Subvolume],
            Property::Label => &[Kind::Filesystem, Kind::Device],
            Property::Compression => &[Kind::Inode],
        };
        kinds.iter().any(|kind| fitting.contains(kind))
    }
}

fn named(name: &str) -> Result<Property> {
    let found = ALL.iter().find(|property| property.name() == name);
    found.copied().ok_or_else(|| anyhow!("unknown property: {name}"))
}

pub fn run(args: &PropertyArgs) -> Result<u8> {
    match &args.what {
        What::Get { object, name } => get(object, name.as_deref()),
        What::Set {
            object,
            force,
            name,
            value,
        } => set(object, *force, name, value),
        What::List { object } => list(object),
    }
}

fn get(object: &Object, name: Option<&str>) -> Result<u8> {
    let mut images = Images::to_read();
    let (place, kinds) = open(&mut images, object)?;
    let wanted = name.map(named).transpose()?;
    match wanted {
        Some(property) => {
            compatible(property, &kinds)?;
            show(property, &place)?;
        }
        None => {
            for property in ALL.into_iter().filter(|property| property.is_of(&kinds)) {
                show(property, &place)?;
            }
        }
    }
    Ok(0)
}

fn list(object: &Object) -> Result<u8> {
    let kinds = match kind_of(object)? {
        Some(kind) => vec![kind],
        None => open(&mut Images::to_read(), object)?.1,
    };
    for property in ALL.into_iter().filter(|property| property.is_of(&kinds)) {
        print(format_args!("{:<20}{}", property.name(), property.description()))?;
    }
    Ok(0)
}

fn set(object: &Object, force: bool, name: &str, value: &OsString) -> Result<u8> {
    let mut images = Images::to_write();
    let (place, kinds) = open(&mut images, object)?;
    let property = named(name)?;
    compatible(property, &kinds)?;
    let shown = object.object.display();
    match property {
        Property::ReadOnly => {
            let is_read_only = match value.to_str() {
                Some("true") => true,
                Some("false") => false,
                _ => bail!("invalid value for property: {}", value.display()),
            };
            set_read_only(&place, is_read_only, force)?;
        }
        Property::Label => {
            label::check(value)?;
            if let Err(error) = place.set_label(value.as_bytes()) {
                bail!("unable to set label of {shown}: {}", reason(&error));
            }
        }
        Property::Compression => {
            if let Err(error) = place.set_compression(value.as_bytes()) {
                bail!("failed to set compression for {shown}: {}", reason(&error));
            }
        }
    }
    drop(place);
    images.close()?;
    Ok(0)
}

fn compatible(property: Property, kinds: &[Kind]) -> Result<()> {
    if !property.is_of(kinds) {
        bail!("object is not compatible with property: {}", property.name());
    }
    Ok(())
}

fn show(property: Property, place: &Place) -> Result<()> {
    let line = match property {
        Property::ReadOnly => {
            let flag = place.is_read_only();
            let flag = flag.map_err(|error| anyhow!("Could not get subvolume flags: {}", reason(&error)))?;
            format!("ro={flag}")
        }
        Property::Label => {
            let label = place.label();
            let label = label.map_err(|error| anyhow!("unable to get label: {}", reason(&error)))?;
            format!("label={}", String::from_utf8_lossy(&label))
        }
        Property::Compression => {
            let value = place.compression();
            let value = value.map_err(|error| anyhow!("failed to get compression: {}", reason(&error)))?;
            match value {
                Some(value) => format!("compression={}", String::from_utf8_lossy(&value)),
                None => return Ok(()),
            }
        }
    };
    print(format_args!("{line}"))?;
    Ok(())
}

/// What the caller says that an object is.
fn kind_of(object: &Object) -> Result<Option<Kind>> {
    Ok(match object.ty.as_deref() {
        None => None,
        Some("i" | "inode") => Some(Kind::Inode),
        Some("s" | "subvol") => Some(Kind::Subvolume),
        Some("f" | "filesystem") => Some(Kind::Filesystem),
        Some("d" | "device") => Some(Kind::Device),
        Some(other) => bail!("invalid object type: {other}"),
    })
}

/// The place of an object, and what it is, or shall be taken for.
fn open(images: &mut Images, object: &Object) -> Result<(Place, Vec<Kind>)> {
    let path = &object.object;
    let chosen = kind_of(object)?;
    let is_block_device = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    if is_block_device {
        return Ok((device(images, path)?, vec![chosen.unwrap_or(Kind::Device)]));
    }
    let place = match images.found(path)? {
        Ok(Found::Place(place)) => place,
        Ok(Found::Elsewhere { .. }) => bail!("object is not a btrfs object: {}", path.display()),
        Err(failed) => {
            let why = reason(&failed);
            if chosen.is_some() {
                bail!("failed to open {}: {why}", path.display());
            }
            error(format_args!("failed to open {}: {why}", path.display()));
            bail!("failed to detect object type: {why}");
        }
    };
    let kinds = match chosen {
        Some(kind) => vec![kind],
        None => kinds_of(&place, path)?,
    };
    Ok((place, kinds))
}

/// The volume on a block device: where it is mounted, that mount.
fn device(images: &mut Images, path: &Path) -> Result<Place> {
    let mounts = crate::commands::mount_table::all()?;
    match mounts.iter().find(|mount| mount.source == *path) {
        Some(mount) => images.anything(&mount.target),
        None => images.top_of(path),
    }
}

fn kinds_of(place: &Place, path: &Path) -> Result<Vec<Kind>> {
    let mut kinds = vec![Kind::Inode];
    if place.root_id().is_ok() {
        kinds.push(Kind::Subvolume);
    }
    let is_whole = match image_of(path) {
        Some((_, inside)) => inside.iter().all(|byte| matches!(byte, b'/' | b'.')),
        None => {
            let path = path.canonicalize()?;
            crate::commands::mount_table::on(&path)?.is_some()
        }
    };
    if is_whole {
        kinds.push(Kind::Filesystem);
    }
    Ok(kinds)
}

fn set_read_only(place: &Place, is_read_only: bool, force: bool) -> Result<()> {
    let failed = |error| anyhow!("failed to set flags: {}", reason(&error));
    let was = place.is_read_only();
    let was = was.map_err(|error| anyhow!("failed to get flags: {}", reason(&error)))?;
    let received = place.received_uuid();
    if !was && received.as_ref().is_ok_and(|uuid| *uuid != [0; 16]) {
        warning("read-write subvolume with received_uuid, this is bad");
    }
    if was && !is_read_only && received.map_err(failed)? != [0; 16] {
        if !force {
            bail!("cannot flip ro->rw with received_uuid set, use force if you really want that");
        }
        place.set_read_only(is_read_only).map_err(failed)?;
        return place.forget_received().map_err(failed);
    }
    place.set_read_only(is_read_only).map_err(failed)
}

impl Place {
    fn compression(&self) -> IoResult<Option<Vec<u8>>> {
        let mut value = vec![0; VALUE_BYTES_MAX];
        let len = match self {
            Place::Kernel(file) | Place::Ours(file) => xattr::get(file, COMPRESSION.as_bytes(), &mut value),
            Place::Image(node) => {
                let (volume, ctx) = (&node.engine.volume, &node.engine.ctx);
                volume
                    .getxattr(ctx, node.id, COMPRESSION.as_bytes(), &mut value)
                    .map_err(Error::from)
            }
        };
        match len {
            Ok(len) => {
                value.truncate(len);
                Ok(Some(value))
            }
            Err(error) if xattr::is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Nothing: as the directory says.
    fn set_compression(&self, value: &[u8]) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => {
                let done = match value {
                    b"" => xattr::remove(file, COMPRESSION.as_bytes()),
                    value => xattr::set(file, COMPRESSION.as_bytes(), value),
                };
                match done {
                    Err(error) if value.is_empty() && xattr::is_absent(&error) => Ok(()),
                    done => done,
                }
            }
            Place::Image(node) => {
                let (volume, ctx) = (&node.engine.volume, &node.engine.ctx);
                match value {
                    b"" if self.compression()?.is_none() => Ok(()),
                    b"" => Ok(volume.removexattr(ctx, node.id, COMPRESSION.as_bytes())?),
                    value => node.set_xattr(COMPRESSION.as_bytes(), value),
                }
            }
        }
    }
}
