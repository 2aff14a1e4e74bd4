//! Properties of the format, `btrfs.*`: only `btrfs.compression` exists. It is an attribute and two
//! inode flags in one.

use cowshed_vfs::{Algorithm, Error as Errno, FileKind};

use super::Effect;
use crate::error::Result;

use crate::object::{Inode, flags};

pub(crate) const COMPRESSION_NAME: &[u8] = b"btrfs.compression";

/// Whatever is neither file nor directory takes properties without an error, and forgets them.
pub(crate) fn is_ignored(inode: &Inode) -> bool {
    !matches!(inode.kind(), FileKind::Regular | FileKind::Directory)
}

fn can_compress(inode_flags: u64) -> bool {
    inode_flags & (flags::NODATACOW | flags::NODATASUM) == 0
}

/// What setting or removing a property does. Errors: `Invalid` (unknown property or value, or a
/// file that cannot be compressed).
pub(crate) fn effect(inode: &Inode, name: &[u8], value: Option<&[u8]>) -> Result<Effect> {
    if name != COMPRESSION_NAME {
        return Err(Errno::Invalid.into());
    }
    let old = inode.flags();
    let rest = old & !(flags::COMPRESS | flags::NOCOMPRESS);
    let value = value.unwrap_or_default();
    if !value.is_empty() && !can_compress(old) {
        return Err(Errno::Invalid.into());
    }
    let new = match value {
        b"" => rest,
        b"no" | b"none" => rest | flags::NOCOMPRESS,
        _ if Algorithm::at_start_of(value).is_some() => rest | flags::COMPRESS,
        _ => return Err(Errno::Invalid.into()),
    };
    Ok(Effect {
        value: (!value.is_empty()).then(|| value.to_vec()),
        mode: None,
        flags: Some(new),
    })
}

/// The property that a new inode in `dir` gets: the algorithm without level. "none" is passed on as
/// a flag alone.
pub(crate) fn inherited_compression(
    dir: &Inode,
    dir_flags: u64,
    kind: FileKind,
    inode_flags: u64,
) -> Result<Option<&'static [u8]>> {
    let takes = matches!(kind, FileKind::Regular | FileKind::Directory);
    if !takes || dir_flags & flags::COMPRESS == 0 || !can_compress(inode_flags) {
        return Ok(None);
    }
    Ok(super::load(dir, COMPRESSION_NAME)?
        .and_then(|value| Algorithm::at_start_of(&value))
        .map(|algorithm| algorithm.name().as_bytes()))
}
