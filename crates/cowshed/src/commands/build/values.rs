//! Values of options, as they are typed.

use std::path::{Path, PathBuf};

use btrfs_image::size::parse_size_bytes;
use cowshed::Compression;
use cowshed::image::{Owner, SubvolumeKind, UserMap};

pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).map_err(|e| e.to_string())
}

/// A subvolume as mkfs.btrfs takes it: `[TYPE:]PATH`.
pub(in super::super) fn subvolume(text: &str) -> Result<(SubvolumeKind, PathBuf), String> {
    let (kind, path) = text.split_once(':').unwrap_or(("rw", text));
    let kind = match kind {
        "rw" => SubvolumeKind::default(),
        "ro" => SubvolumeKind {
            read_only: true,
            is_default: false,
        },
        "default" => SubvolumeKind {
            read_only: false,
            is_default: true,
        },
        "default-ro" => SubvolumeKind {
            read_only: true,
            is_default: true,
        },
        _ => return Err(format!("{kind:?} is none of rw, ro, default, default-ro")),
    };
    Ok((kind, path.into()))
}

/// How files are compressed that match a glob, or all.
#[derive(Clone, Debug)]
pub(in super::super) struct Compress {
    pub(in super::super) glob: Option<String>,
    pub(in super::super) how: Option<Compression>,
}

pub(in super::super) fn compress(text: &str) -> Result<Compress, String> {
    let (glob, how) = match text.rsplit_once('=') {
        Some((glob, how)) => (Some(glob.to_owned()), how),
        None => (None, text),
    };
    let how = match how {
        "none" | "no" => None,
        how => Some(how.parse::<Compression>().map_err(|e| e.to_string())?),
    };
    Ok(Compress { glob, how })
}

/// Flags of a path, as mkfs.btrfs takes them.
#[derive(Clone, Debug)]
pub(in super::super) struct InodeFlags {
    pub(super) nodatacow: bool,
    pub(super) nodatasum: bool,
    pub(super) path: PathBuf,
}

pub(in super::super) fn inode_flags(text: &str) -> Result<InodeFlags, String> {
    let (flags, path) = text.split_once(':').ok_or("expected FLAGS:PATH")?;
    let mut parsed = InodeFlags {
        nodatacow: false,
        nodatasum: false,
        path: path.into(),
    };
    for flag in flags.split(',') {
        match flag {
            "nodatacow" => parsed.nodatacow = true,
            "nodatasum" => parsed.nodatasum = true,
            _ => return Err(format!("{flag:?} is none of nodatacow, nodatasum")),
        }
    }
    Ok(parsed)
}

fn id_pair(text: &str) -> Option<Owner> {
    let (uid, gid) = text.split_once(':')?;
    Some(Owner {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    })
}

pub(super) fn root_owner(text: &str) -> Result<Owner, String> {
    id_pair(text).ok_or_else(|| format!("{text:?} is not UID:GID"))
}

pub(super) fn owner(text: &str) -> Result<(PathBuf, Owner), String> {
    let colon = text.rmatch_indices(':').nth(1).map(|(at, _)| at);
    let parsed = colon.and_then(|at| Some((text[..at].into(), id_pair(&text[at + 1..])?)));
    parsed.ok_or_else(|| format!("{text:?} is not PATH:UID:GID"))
}

pub(super) fn mode(text: &str) -> Result<(PathBuf, u32), String> {
    let parsed = text.rsplit_once(':').and_then(|(path, mode)| {
        let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)?;
        Some((path.into(), mode))
    });
    parsed.ok_or_else(|| format!("{text:?} is not PATH:MODE, the mode in octal"))
}

/// A source, and the directory of the image that it goes to.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) into: PathBuf,
    pub(super) path: PathBuf,
}

/// `[DIR=]SOURCE`; a name with `=` that is there is a name.
pub(super) fn from(text: &str) -> Result<Origin, String> {
    let (into, path) = match text.split_once('=') {
        Some((into, path)) if !Path::new(text).exists() => (into, path),
        _ => ("", text),
    };
    Ok(Origin {
        into: into.into(),
        path: path.into(),
    })
}

/// A snapshot: `[TYPE:]SOURCE:PATH`.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) kind: SubvolumeKind,
    pub(super) of: PathBuf,
    pub(super) at: PathBuf,
}

pub(super) fn snapshot(text: &str) -> Result<Snapshot, String> {
    let (source, at) = text.rsplit_once(':').ok_or("expected [TYPE:]SOURCE:PATH")?;
    let (kind, of) = match source.contains(':') {
        true => subvolume(source)?,
        false => (SubvolumeKind::default(), source.into()),
    };
    Ok(Snapshot {
        kind,
        of,
        at: at.into(),
    })
}

/// Flags of what matches a glob: `GLOB:LETTERS`.
pub(super) fn chattr(text: &str) -> Result<(String, String), String> {
    let (glob, letters) = text.rsplit_once(':').ok_or("expected GLOB:LETTERS")?;
    Ok((glob.into(), letters.into()))
}

/// A partition of a disk that is there: `IMAGE:PARTITION`.
pub(super) fn target(text: &str) -> Result<(PathBuf, String), String> {
    match text.rsplit_once(':') {
        Some((image, partition)) if !image.is_empty() && !partition.is_empty() => Ok((image.into(), partition.into())),
        _ => Err(format!("{text:?} is not IMAGE:PARTITION")),
    }
}

/// A file with a translation, or that of the caller's subordinate users.
pub(super) fn user_map(text: &str) -> Result<UserMap, String> {
    if text == "subuid" {
        return UserMap::of_caller().map_err(|error| error.to_string());
    }
    let rules = std::fs::read_to_string(text).map_err(|error| format!("{text}: {error}"))?;
    rules.parse().map_err(|error| format!("{text}: {error}"))
}
