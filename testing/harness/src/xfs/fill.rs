//! A tree that has every form of directory, attribute and fork.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, XattrFlags};

use crate::sys::clone_range;
use crate::tree::{Kinds, MakeOptions, colliding_xfs_names, make};

/// How much of everything, and what the volume can hold.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub seed: u64,
    /// Entries of the random tree.
    pub entries: usize,
    /// Names in the largest directory.
    pub names: usize,
    /// Extents of the file in most pieces.
    pub extents: usize,
    /// Links to one file.
    pub links: usize,
    /// Attributes of the file with most of them; every fifth is removed again.
    pub attributes: usize,
    /// Files with flags, among them some that cannot be changed.
    pub flags: bool,
    /// Bytes of a block of the volume.
    pub block_bytes: u64,
    /// Files can share extents.
    pub reflink: bool,
}

impl Fill {
    /// Enough for each form, in a second or two.
    pub fn small(seed: u64) -> Fill {
        Fill {
            seed,
            entries: 100,
            names: 3000,
            extents: 2000,
            links: 300,
            attributes: 3000,
            flags: true,
            block_bytes: 4096,
            reflink: true,
        }
    }
}

/// Fills the root of a mount of the kernel.
pub fn fill(root: &Path, what: &Fill) -> Result<()> {
    let random = root.join("random");
    fs::create_dir(&random)?;
    let tree = MakeOptions {
        total_bytes: 8 << 20,
        // Longer ones are made below, by hand.
        symlink_bytes_max: 1023,
        minors: 1 << 18,
        kinds: Kinds {
            reflinks: what.reflink,
            ..Kinds::all()
        },
        ..MakeOptions::new(what.seed, what.entries)
    };
    make(&random, &tree).context("a random tree")?;
    directories(root, what).context("directories")?;
    files(root, what).context("files")?;
    attributes(root, what.attributes).context("attributes")?;
    if what.flags {
        flags(root).context("flags")?;
    }
    symlink("a".repeat(1023), root.join("longest symlink"))?;
    symlink("b".repeat(200), root.join("symlink"))?;
    Ok(())
}

/// Makes a directory of empty files, and takes some away again.
fn directory(path: &Path, count: usize, name: impl Fn(usize) -> Vec<u8>, gone_every: usize) -> Result<()> {
    fs::create_dir(path)?;
    let file = |n: usize| path.join(OsStr::from_bytes(&name(n)));
    for n in 0..count {
        File::create_new(file(n))?;
    }
    for n in (0..count).step_by(gone_every) {
        fs::remove_file(file(n))?;
    }
    Ok(())
}

fn directories(root: &Path, what: &Fill) -> Result<()> {
    let named = |stem: &'static str| move |n: usize| format!("{stem}{n}").into_bytes();
    directory(&root.join("short form"), 4, named("e"), 9)?;
    directory(&root.join("block form"), 30, named("entry"), 7)?;
    directory(&root.join("leaf form"), 260, named("a_name_of_some_length_"), 9)?;
    directory(
        &root.join("node form"),
        what.names,
        named("a_longer_name_of_an_entry_"),
        7,
    )?;
    let colliding = colliding_xfs_names(64);
    directory(&root.join("one hash"), 64, |n| colliding[n].clone(), 5)?;
    // With holes where whole blocks went.
    let holes = root.join("holes");
    directory(&holes, what.names / 2, named("another_name_of_an_entry_"), what.names)?;
    for n in what.names / 8..what.names / 4 {
        fs::remove_file(holes.join(format!("another_name_of_an_entry_{n}")))?;
    }
    File::create_new(root.join("n".repeat(255)))?;
    Ok(())
}

fn files(root: &Path, what: &Fill) -> Result<()> {
    let block = what.block_bytes;
    let pieces = File::create_new(root.join("pieces"))?;
    // Behind its end Linux would allocate ahead, and not give all of it back.
    pieces.set_len(what.extents as u64 * 2 * block)?;
    for n in 0..what.extents as u64 {
        if n % 8 == 7 {
            // Unwritten, and without a byte for the image to hold.
            rustix::fs::fallocate(&pieces, FallocateFlags::empty(), n * 2 * block, block)?;
        } else {
            pieces.write_all_at(&n.to_le_bytes(), n * 2 * block)?;
        }
    }
    pieces.sync_all()?;
    let unwritten = File::create_new(root.join("unwritten"))?;
    rustix::fs::fallocate(&unwritten, FallocateFlags::empty(), 0, 64 * block)?;
    unwritten.write_all_at(&vec![7; 3 * block as usize], 5 * block + 100)?;
    rustix::fs::fallocate(&unwritten, FallocateFlags::KEEP_SIZE, 100 * block, 8 * block)?;
    let sparse = File::create_new(root.join("sparse"))?;
    sparse.write_all_at(b"far", 1 << 42)?;
    sparse.set_len((1 << 43) + 1)?;

    let linked = root.join("linked");
    fs::create_dir(&linked)?;
    let first = linked.join("first");
    fs::write(&first, vec![3; 300_000])?;
    for n in 0..what.links {
        fs::hard_link(&first, linked.join(format!("hard link {n}")))?;
    }
    if what.reflink {
        let source = File::open(root.join("pieces"))?;
        for n in 0..4_u64 {
            let clone = File::create_new(root.join(format!("clone {n}")))?;
            clone_range(&source, 0, &clone, 0, 0)?;
            for at in (0..what.extents as u64).step_by(9) {
                clone.write_all_at(&[n as u8 + 1; 100], at * 2 * block)?;
            }
        }
    }
    Ok(())
}

/// Flags of inodes, project ids and hints, as lsattr(1) and `xfs_io -c stat` show them.
fn flags(root: &Path) -> Result<()> {
    let dir = root.join("flags");
    fs::create_dir(&dir)?;
    let io = |command: &str, name: &str| {
        let path = dir.join(name);
        crate::run("xfs_io", &["-c".as_ref(), command.as_ref(), path.as_os_str()])
    };
    for name in ["append", "dump", "sync", "project", "hint", "cow hint", "fixed"] {
        File::create_new(dir.join(name))?;
    }
    fs::create_dir(dir.join("inherited"))?;
    io("chattr +a", "append")?;
    io("chattr +dA", "dump")?;
    io("chattr +s", "sync")?;
    io("chproj 123456789", "project")?;
    io("extsize 1m", "hint")?;
    // Where nothing can be shared there is no such hint.
    let _ = io("cowextsize 256k", "cow hint");
    io("chattr +tn", "inherited")?;
    io("chproj 42", "inherited")?;
    io("chattr +i", "fixed")?;
    Ok(())
}

fn attributes(root: &Path, count: usize) -> Result<()> {
    let set = |path: &Path, name: &[u8], value: &[u8]| -> Result<()> {
        let name = std::ffi::CString::new(name)?;
        Ok(rustix::fs::setxattr(path, &name, value, XattrFlags::empty())?)
    };
    let holder = |name: &str| -> Result<std::path::PathBuf> {
        let path = root.join(name);
        File::create_new(&path)?;
        Ok(path)
    };
    let short = holder("short attributes")?;
    set(&short, b"user.a", b"b")?;
    set(&short, b"trusted.t", b"")?;
    set(&short, b"security.s", b"secure")?;
    let leaf = holder("leaf of attributes")?;
    for n in 0..20 {
        set(&leaf, format!("user.attribute_{n}").as_bytes(), &[b'v'; 40])?;
    }
    let node = holder("nodes of attributes")?;
    let name = |n: usize| format!("user.attribute_{n}");
    for n in 0..count {
        set(&node, name(n).as_bytes(), &[n as u8; 60])?;
    }
    for n in (0..count).step_by(5) {
        rustix::fs::removexattr(&node, name(n))?;
    }
    let remote = holder("remote values")?;
    for (name, bytes) in [
        ("k9", 9000),
        ("k60", 60_000),
        ("most", 65_536),
        ("none", 0),
        ("k3", 3000),
    ] {
        let value: Vec<u8> = (0..bytes).map(|n: u32| (n / 7) as u8).collect();
        set(&remote, format!("user.{name}").as_bytes(), &value)?;
    }
    let colliding = holder("attributes of one hash")?;
    for (n, name) in colliding_xfs_names(40).iter().enumerate() {
        set(&colliding, &[b"user.", &name[..]].concat(), format!("{n}").as_bytes())?;
    }
    Ok(())
}
