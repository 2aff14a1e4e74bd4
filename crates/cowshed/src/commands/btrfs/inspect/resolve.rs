//! `inspect-internal subvolid-resolve`, `inode-resolve` and `logical-resolve`: paths of what has a
//! number.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Result as IoResult};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use btrfs_format::view::{self, BackRef, FileExtentView};
use btrfs_format::{KeyType, ObjectId, TreeId};
use clap::Args;
use cowshed_vfs::Search;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::place::{Images, Place};
use super::super::roots::{Roots, TOP_LEVEL, items_of};
use super::super::say::{Voice, number, print, reason};
use crate::commands::committed::mounted_devices;
use crate::commands::inspect::btrfs::extent::{find, inodes_in};
use crate::commands::inspect::btrfs::reader::Reader;
use crate::commands::mount_table;
use crate::commands::offline::image_of;
use crate::ioctl;
use crate::people::printable;

pub fn subvolume(id: &str, path: &Path) -> Result<u8> {
    let mut images = Images::to_read();
    let place = images.directory(path)?;
    let id = number(id)?;
    let failed = |error: Error| {
        anyhow!(
            "resolving subvolid {id} error {}",
            -error.raw_os_error().unwrap_or(libc::EIO)
        )
    };
    let roots = Roots::load(&place).map_err(failed)?;
    if id == TOP_LEVEL {
        print("")?;
        return Ok(0);
    }
    let Some(root) = roots.find(id).filter(|root| !root.is_deleted()) else {
        crate::people::warn(format_args!("failed to lookup subvol_id {id}!"));
        return Err(failed(Error::from_raw_os_error(libc::ENOENT)));
    };
    let path = roots.path(root, 0).map_err(failed)?;
    print(format_args!("{}", printable(OsStr::from_bytes(&path))))?;
    Ok(0)
}

pub fn inode(inode: &str, path: &Path) -> Result<u8> {
    let mut images = Images::to_read();
    let place = images.directory(path)?;
    let inode = number(inode)?;
    let names = place.tree().and_then(|tree| names(&place, tree, inode));
    let names = names.map_err(|error| anyhow!("ino paths ioctl: {}", reason(&error)))?;
    if names.is_empty() {
        bail!("ino paths ioctl: No such file or directory");
    }
    for name in names {
        print(format_args!(
            "{}/{}",
            path.display(),
            printable(OsStr::from_bytes(&name))
        ))?;
    }
    Ok(0)
}

/// The paths of an inode from the root of its subvolume, in the order of its references.
fn names(place: &Place, tree: u64, inode: u64) -> IoResult<Vec<Vec<u8>>> {
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    let refs = items_of(TreeId(tree), ObjectId(inode), KeyType::INODE_REF);
    place.search(&refs, &mut |(.., dir), bytes, _| {
        found.extend(view::inode_refs(bytes).map(|(_, name)| (dir, name.to_vec())));
        ControlFlow::Continue(())
    })?;
    let refs = items_of(TreeId(tree), ObjectId(inode), KeyType::INODE_EXTREF);
    place.search(&refs, &mut |_, bytes, _| {
        found.extend(view::inode_extrefs(bytes).map(|(head, name)| (head.parent_objectid.get(), name.to_vec())));
        ControlFlow::Continue(())
    })?;
    let whole = |(dir, name): (u64, Vec<u8>)| {
        let mut path = place.path_in(tree, dir)?;
        path.extend(name);
        Ok(path)
    };
    found.into_iter().map(whole).collect()
}

#[derive(Args, Debug)]
pub struct LogicalArgs {
    /// Print inodes instead of paths
    #[arg(short = 'P')]
    inodes: bool,
    /// Files that have any part of the extent, not only this address
    #[arg(short = 'o')]
    ignore_offset: bool,
    /// Accepted: there is always room for all
    #[arg(short = 's', value_name = "BYTES")]
    size: Option<String>,
    /// Accepted
    #[arg(short = 'v')]
    verbose: bool,
    /// The address
    logical: String,
    /// A directory on the volume
    path: PathBuf,
}

/// A file that has data of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct User {
    tree: u64,
    inode: u64,
    /// In the file, in bytes.
    offset: u64,
}

pub fn logical(args: &LogicalArgs, _voice: Voice) -> Result<u8> {
    let mut images = Images::to_read();
    let place = images.directory(&args.path)?;
    let logical = number(&args.logical)?;
    let users = match &place {
        Place::Kernel(file) => users_by_kernel(file, logical, args.ignore_offset),
        Place::Ours(_) | Place::Image(_) => users(&place, &args.path, logical, args.ignore_offset)?,
    };
    let failed = |error: Error| anyhow!("logical ino ioctl: {}", reason(&error));
    let users = users.map_err(failed)?;
    if users.is_empty() {
        return Err(failed(Error::from_raw_os_error(libc::ENOENT)));
    }
    let own = place.tree().map_err(failed)?;
    let roots = Roots::load(&place).map_err(failed)?;
    for user in users {
        if args.inodes {
            print(format_args!(
                "inode {} offset {} root {}",
                user.inode, user.offset, user.tree
            ))?;
            continue;
        }
        let Some(root) = roots.find(user.tree) else {
            continue;
        };
        let below = roots.path(root, 0).map_err(failed)?;
        let Some(top) = reached(&args.path, (user.tree, &below), own) else {
            let below = printable(OsStr::from_bytes(&below));
            print(format_args!(
                "inode {} subvol {below} could not be accessed: not mounted",
                user.inode
            ))?;
            continue;
        };
        for name in names(&place, user.tree, user.inode).map_err(failed)? {
            print(format_args!(
                "{}/{}",
                top.display(),
                printable(OsStr::from_bytes(&name))
            ))?;
        }
    }
    Ok(0)
}

/// Where the root of a subvolume is reached: in an image by its path, on a mount where it is the
/// one of the path itself, or mounted on a directory of its own.
fn reached(path: &Path, (tree, below): (u64, &[u8]), own: u64) -> Option<PathBuf> {
    if let Some((image, _)) = image_of(path) {
        let mut whole = image.as_os_str().to_owned();
        whole.push(":");
        if !below.is_empty() {
            whole.push("/");
            whole.push(OsStr::from_bytes(below));
        }
        return Some(whole.into());
    }
    if tree == own {
        return Some(path.to_owned());
    }
    let uuid = Images::to_read().anything(path).ok()?.facts().ok()?.uuid;
    let mounts = mount_table::all().ok()?;
    let of_btrfs = mounts
        .into_iter()
        .filter(|mount| mount.kind == "btrfs" || mount.is_ours());
    let shows =
        |place: &Place| place.root_id().ok() == Some(tree) && place.facts().is_ok_and(|facts| facts.uuid == uuid);
    let mut fitting = of_btrfs.filter(|mount| {
        Images::to_read()
            .anything(&mount.target)
            .is_ok_and(|place| shows(&place))
    });
    fitting.next().map(|mount| mount.target)
}

/// Of a volume that our engine serves or could: the extent's references are read from its devices,
/// and name inodes. A reference counts for all trees that share the leaf with the file's item, so
/// each of these inodes is looked up in each subvolume.
fn users(place: &Place, path: &Path, logical: u64, ignores_offset: bool) -> Result<IoResult<Vec<User>>> {
    let devices = match image_of(path) {
        Some((image, _)) => vec![image.to_owned()],
        None => {
            if let Err(error) = place.commit() {
                return Ok(Err(error));
            }
            mounted_devices(path)?
        }
    };
    let reader = Reader::open(&devices)?;
    let extent = find(&reader, logical)?.filter(|extent| !extent.is_tree_block());
    let Some(extent) = extent else {
        return Ok(Err(Error::from_raw_os_error(libc::ENOENT)));
    };
    let mut inodes = BTreeSet::new();
    for back_ref in &extent.back_refs {
        match *back_ref {
            BackRef::ExtentData { objectid, .. } => drop(inodes.insert(objectid)),
            BackRef::SharedData { parent, .. } => inodes.extend(inodes_in(&reader, parent, extent.start)),
            BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } | BackRef::Owner { .. } => {}
        }
    }
    let look = || -> IoResult<Vec<User>> {
        let mut users = Vec::new();
        for root in Roots::load(place)?.iter() {
            for inode in &inodes {
                in_file(
                    place,
                    (root.id, *inode),
                    (extent.start, logical, ignores_offset),
                    &mut users,
                )?;
            }
        }
        // The kernel names the youngest subvolumes first.
        users.reverse();
        Ok(users)
    };
    Ok(look())
}

/// The places of a file that have data of an extent.
fn in_file(
    place: &Place,
    (tree, inode): (u64, u64),
    (start, logical, ignores_offset): (u64, u64, bool),
    users: &mut Vec<User>,
) -> IoResult<()> {
    let what = Search {
        tree,
        from: (inode, KeyType::EXTENT_DATA.0, 0),
        to: (inode, KeyType::EXTENT_DATA.0, u64::MAX),
        since: 0,
        until: u64::MAX,
    };
    let searched = place.search(&what, &mut |(.., offset), bytes, _| {
        if let Some(FileExtentView::Regular(item)) = view::file_extent(bytes)
            && item.disk_bytenr.get() == start
        {
            let (into, len) = (item.offset.get(), item.num_bytes.get());
            let at = logical - start;
            let user = |offset| User { tree, inode, offset };
            if ignores_offset || item.compression != 0 {
                users.push(user(offset));
            } else if (into..into.saturating_add(len)).contains(&at) {
                users.push(user(offset + at - into));
            }
        }
        ControlFlow::Continue(())
    });
    match searched {
        // A subvolume that is being dropped.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done,
    }
}

/// `BTRFS_IOC_LOGICAL_INO_V2`
const LOGICAL_INO_V2: u32 = 0xc038_943b;
/// `BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET`
const IGNORE_OFFSET: u64 = 1;
/// The largest buffer that the kernel takes.
const USERS_BYTES: usize = 16 << 20;

/// `struct btrfs_ioctl_logical_ino_args`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LogicalIno {
    logical: U64,
    size: U64,
    reserved: [U64; 3],
    flags: U64,
    inodes: U64,
}

/// Head of `struct btrfs_data_container`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Container {
    bytes_left: U32,
    bytes_missing: U32,
    elem_cnt: U32,
    elem_missed: U32,
}

fn users_by_kernel(file: &File, logical: u64, ignores_offset: bool) -> IoResult<Vec<User>> {
    let mut buffer = vec![0; USERS_BYTES];
    let mut call = LogicalIno::new_zeroed();
    call.logical = logical.into();
    call.size = (USERS_BYTES as u64).into();
    call.flags = if ignores_offset { IGNORE_OFFSET } else { 0 }.into();
    ioctl::call_with_buffer(file, LOGICAL_INO_V2, &mut call, &mut buffer, |call, address| {
        call.inodes = address.into();
    })?;
    let Ok((head, values)) = Container::ref_from_prefix(&buffer) else {
        return Ok(Vec::new());
    };
    // Each element is three values: inode, offset, tree.
    let values = values.chunks_exact(size_of::<u64>()).take(head.elem_cnt.get() as usize);
    let values: Vec<u64> = values
        .map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
        .collect();
    let user = |triple: &[u64]| match *triple {
        [inode, offset, tree] => Some(User { tree, inode, offset }),
        _ => None,
    };
    Ok(values.chunks_exact(3).filter_map(user).collect())
}
