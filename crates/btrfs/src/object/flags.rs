//! Inode flags: the format's bits, the bits that `chattr` and the `FS_IOC_*` calls speak, and what
//! children inherit.
//!
//! Facts from the `btrfs_inode_item.flags` documentation and from watching the kernel.

pub use btrfs_format::features::inode_flags::*;
use cowshed_vfs::Error as Errno;

/// `FS_*_FL` of `<linux/fs.h>`.
mod chattr {
    pub(crate) const COMPR: u32 = 0x4;
    pub(crate) const SYNC: u32 = 0x8;
    pub(crate) const IMMUTABLE: u32 = 0x10;
    pub(crate) const APPEND: u32 = 0x20;
    pub(crate) const NODUMP: u32 = 0x40;
    pub(crate) const NOATIME: u32 = 0x80;
    pub(crate) const NOCOMP: u32 = 0x400;
    pub(crate) const DIRSYNC: u32 = 0x1_0000;
    pub(crate) const VERITY: u32 = 0x10_0000;
    pub(crate) const NOCOW: u32 = 0x80_0000;
}

/// `FS_XFLAG_*` of `<linux/fs.h>`, as far as the format has them.
mod xflag {
    pub(crate) const IMMUTABLE: u32 = 0x8;
    pub(crate) const APPEND: u32 = 0x10;
    pub(crate) const SYNC: u32 = 0x20;
    pub(crate) const NOATIME: u32 = 0x40;
    pub(crate) const NODUMP: u32 = 0x80;
}

/// Bits that stand for the same thing in both worlds.
const PLAIN: [(u32, u64); 6] = [
    (chattr::SYNC, SYNC),
    (chattr::IMMUTABLE, IMMUTABLE),
    (chattr::APPEND, APPEND),
    (chattr::NODUMP, NODUMP),
    (chattr::NOATIME, NOATIME),
    (chattr::DIRSYNC, DIRSYNC),
];
const XFLAGS: [(u32, u64); 5] = [
    (xflag::SYNC, SYNC),
    (xflag::IMMUTABLE, IMMUTABLE),
    (xflag::APPEND, APPEND),
    (xflag::NODUMP, NODUMP),
    (xflag::NOATIME, NOATIME),
];
const SETTABLE: u32 = chattr::COMPR
    | chattr::SYNC
    | chattr::IMMUTABLE
    | chattr::APPEND
    | chattr::NODUMP
    | chattr::NOATIME
    | chattr::NOCOMP
    | chattr::DIRSYNC
    | chattr::NOCOW;

/// What `FS_IOC_GETFLAGS` shows.
pub(crate) fn to_chattr(flags: u64) -> u32 {
    let mut out = 0;
    for (theirs, ours) in PLAIN {
        if flags & ours != 0 {
            out |= theirs;
        }
    }
    if flags & NODATACOW != 0 {
        out |= chattr::NOCOW;
    }
    if flags & NOCOMPRESS != 0 {
        out |= chattr::NOCOMP;
    } else if flags & COMPRESS != 0 {
        out |= chattr::COMPR;
    }
    if flags & RO_VERITY != 0 {
        out |= chattr::VERITY;
    }
    out
}

/// What becomes of the `btrfs.compression` property when flags are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompressionProperty {
    Set,
    Remove,
}

/// What a file is, as far as it decides about flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlagSubject {
    pub(crate) is_regular: bool,
    pub(crate) is_empty: bool,
    /// Everything is written in place on this mount anyway.
    pub(crate) mount_nodatacow: bool,
}

/// Flags after `FS_IOC_SETFLAGS`. Errors: `NotSupported` (a flag that the format does not have),
/// `Invalid` (impossible together).
pub(crate) fn from_chattr(old: u64, wanted: u32, subject: FlagSubject) -> Result<(u64, CompressionProperty), Errno> {
    if wanted & !SETTABLE != 0 {
        return Err(Errno::NotSupported);
    }
    let has = |bit| wanted & bit != 0;
    let was = to_chattr(old);
    let compression = chattr::COMPR | chattr::NOCOMP;
    let contradicts = has(chattr::COMPR) && (has(chattr::NOCOMP) || has(chattr::NOCOW));
    let crosses = (was & chattr::NOCOW != 0 && has(compression)) || (has(chattr::NOCOW) && was & compression != 0);
    if contradicts || crosses {
        return Err(Errno::Invalid);
    }
    let mut flags = old;
    for (theirs, ours) in PLAIN {
        set(&mut flags, ours, has(theirs));
    }
    if !subject.is_regular {
        set(&mut flags, NODATACOW, has(chattr::NOCOW));
    } else if subject.is_empty && (has(chattr::NOCOW) || !subject.mount_nodatacow) {
        // Only without extents: checksums cannot be switched off or on over data that has or lacks
        // them.
        if has(chattr::NOCOW) != (old & NODATACOW != 0) {
            set(&mut flags, NODATACOW | NODATASUM, has(chattr::NOCOW));
        }
    }
    set(&mut flags, NOCOMPRESS, has(chattr::NOCOMP));
    set(&mut flags, COMPRESS, has(chattr::COMPR));
    let property = if has(chattr::COMPR) {
        CompressionProperty::Set
    } else {
        CompressionProperty::Remove
    };
    Ok((flags, property))
}

/// What `FS_IOC_FSGETXATTR` shows.
pub(crate) fn to_xflags(flags: u64) -> u32 {
    XFLAGS.iter().fold(
        0,
        |out, (theirs, ours)| if flags & ours != 0 { out | theirs } else { out },
    )
}

/// Flags after `FS_IOC_FSSETXATTR`. Errors: `NotSupported`.
pub(crate) fn from_xflags(old: u64, wanted: u32) -> Result<u64, Errno> {
    let known = XFLAGS.iter().fold(0, |all, (theirs, _)| all | theirs);
    if wanted & !known != 0 {
        return Err(Errno::NotSupported);
    }
    let mut flags = old;
    for (theirs, ours) in XFLAGS {
        set(&mut flags, ours, wanted & theirs != 0);
    }
    Ok(flags)
}

/// Flags of a new inode in a directory with `parent` flags.
pub(crate) fn inherit(parent: u64, is_regular: bool, mount_nodatacow: bool, mount_nodatasum: bool) -> u64 {
    let mut flags = 0;
    if parent & NOCOMPRESS != 0 {
        flags |= NOCOMPRESS;
    } else if parent & COMPRESS != 0 {
        flags |= COMPRESS;
    }
    if parent & NODATACOW != 0 {
        flags |= NODATACOW;
        if is_regular {
            flags |= NODATASUM;
        }
    }
    if is_regular {
        if mount_nodatacow {
            flags |= NODATACOW | NODATASUM;
        }
        if mount_nodatasum {
            flags |= NODATASUM;
        }
    }
    flags
}

fn set(flags: &mut u64, bits: u64, on: bool) {
    if on {
        *flags |= bits;
    } else {
        *flags &= !bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: FlagSubject = FlagSubject {
        is_regular: true,
        is_empty: true,
        mount_nodatacow: false,
    };
    const FULL: FlagSubject = FlagSubject {
        is_empty: false,
        ..EMPTY
    };

    #[test]
    fn nocow_only_on_empty_files() {
        let (flags, _) = from_chattr(0, chattr::NOCOW, EMPTY).unwrap();
        assert_eq!(flags, NODATACOW | NODATASUM);
        assert_eq!(from_chattr(0, chattr::NOCOW, FULL).unwrap().0, 0);
        assert_eq!(
            from_chattr(flags, 0, FULL).unwrap().0,
            flags,
            "cannot be taken back either"
        );
        assert_eq!(from_chattr(flags, 0, EMPTY).unwrap().0, 0);
        let dir = FlagSubject {
            is_regular: false,
            ..FULL
        };
        assert_eq!(from_chattr(0, chattr::NOCOW, dir).unwrap().0, NODATACOW);
    }

    #[test]
    fn contradictions_are_refused() {
        let bad = |old, new| assert_eq!(from_chattr(old, new, EMPTY), Err(Errno::Invalid), "{old:x} {new:x}");
        bad(0, chattr::COMPR | chattr::NOCOMP);
        bad(0, chattr::COMPR | chattr::NOCOW);
        bad(NODATACOW | NODATASUM, chattr::COMPR);
        bad(COMPRESS, chattr::NOCOW);
        assert_eq!(from_chattr(0, 0x1000, EMPTY), Err(Errno::NotSupported));
    }

    #[test]
    fn flags_survive_the_round_trip() {
        let all = chattr::SYNC | chattr::IMMUTABLE | chattr::APPEND | chattr::NODUMP | chattr::NOATIME | chattr::COMPR;
        let (flags, property) = from_chattr(PREALLOC, all, FULL).unwrap();
        assert_eq!((to_chattr(flags), property), (all, CompressionProperty::Set));
        assert_ne!(flags & PREALLOC, 0, "what chattr does not know stays");
        assert_eq!(from_xflags(flags, to_xflags(flags)), Ok(flags));
        assert_eq!(from_xflags(0, 1 << 31), Err(Errno::NotSupported));
    }

    #[test]
    fn children_inherit_compression_and_cow() {
        assert_eq!(inherit(NODATACOW, true, false, false), NODATACOW | NODATASUM);
        assert_eq!(inherit(NODATACOW, false, false, false), NODATACOW);
        assert_eq!(inherit(COMPRESS | SYNC | IMMUTABLE, true, false, false), COMPRESS);
        assert_eq!(inherit(NOCOMPRESS, false, false, false), NOCOMPRESS);
        assert_eq!(inherit(0, true, false, true), NODATASUM);
        assert_eq!(inherit(0, false, true, true), 0);
    }
}
