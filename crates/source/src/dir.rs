//! A directory of the host as a source.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use cowshed_runtime::Workers;
use rustix::fs::{SeekFrom, seek};

use crate::content::{Content, Stamp};
use crate::error::{Error, Result};
use crate::sys;
use crate::tree::{Body, Inode, InodeId, Keep, Meta, Time, Tree, perm};

/// Bytes of a block as `st_blocks` counts it.
const STAT_BLOCK_BYTES: u64 = 512;

/// Directories that are listed at once, while what was found in those before goes into the tree.
/// What is found in them is in memory twice meanwhile.
const DIRS_AT_ONCE: usize = 64;

/// Adds what is in a directory of the host to the tree, the directory itself as its base. `keep`
/// gets each path in the image, without a leading slash, and whether it is a directory; what it
/// refuses is left out, with all below.
pub fn add_directory(tree: &mut Tree, dir: &Path, workers: &Workers, keep: &mut Keep<'_>) -> Result<()> {
    let metadata = fs::metadata(dir).map_err(Error::host(dir))?;
    if !metadata.is_dir() {
        let error = std::io::Error::from(std::io::ErrorKind::NotADirectory);
        return Err(Error::host(dir)(error));
    }
    // The directory may be named by a symbolic link.
    let dir = fs::canonicalize(dir).map_err(Error::host(dir))?;
    let base = tree.base();
    tree[base].meta = meta(&dir, &metadata, &mut Vec::new())?;
    let mut merging = Merging {
        tree,
        keep,
        linked: HashMap::new(),
        // A stack of our own: directories may be deeper than a thread's stack.
        todo: vec![Dir {
            host: dir.into(),
            path: Vec::new(),
            id: base,
        }],
    };
    let mut listed = Vec::new();
    loop {
        let rest = merging.todo.len().saturating_sub(DIRS_AT_ONCE);
        let dirs = merging.todo.split_off(rest);
        if dirs.is_empty() && listed.is_empty() {
            return Ok(());
        }
        // First, since it is the longest.
        let mut jobs = vec![Job::Merge(&mut merging, std::mem::take(&mut listed))];
        jobs.extend(dirs.into_iter().map(Job::List));
        for done in workers.run(jobs, Job::run) {
            match done {
                Done::Merged(merged) => merged?,
                Done::Listed(dir, found) => listed.push((dir, found?)),
            }
        }
    }
}

/// What one thread does at a time.
enum Job<'j, 'm> {
    Merge(&'j mut Merging<'m>, Vec<(Dir, Vec<Found>)>),
    List(Dir),
}

enum Done {
    Merged(Result<()>),
    Listed(Dir, Result<Vec<Found>>),
}

impl Job<'_, '_> {
    fn run(self) -> Done {
        match self {
            Job::Merge(merging, listed) => {
                let mut listed = listed.into_iter();
                Done::Merged(listed.try_for_each(|(dir, found)| merging.merge(&dir, found)))
            }
            Job::List(dir) => {
                let found = list(&dir.host);
                Done::Listed(dir, found)
            }
        }
    }
}

/// A directory whose entries are not in the tree yet.
struct Dir {
    host: Arc<Path>,
    path: Vec<u8>,
    id: InodeId,
}

/// An entry of a directory. What cannot be read is an error if the entry is taken.
struct Found {
    name: Box<[u8]>,
    metadata: Metadata,
    inode: Result<Inode>,
}

/// The entries of a directory, in the order of their names.
fn list(dir: &Arc<Path>) -> Result<Vec<Found>> {
    let mut buf = Vec::new();
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::host(&**dir))? {
        let entry = entry.map_err(Error::host(&**dir))?;
        let name = entry.file_name();
        let name = name.as_bytes();
        let host = dir.join(entry.file_name());
        let metadata = entry.metadata().map_err(Error::host(&host))?;
        let inode = meta(&host, &metadata, &mut buf).and_then(|meta| {
            let body = body(dir, name, &host, &metadata)?;
            Ok(Inode { meta, body })
        });
        found.push(Found {
            name: name.into(),
            metadata,
            inode,
        });
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

struct Merging<'a> {
    tree: &'a mut Tree,
    keep: &'a mut Keep<'a>,
    /// Files with several names, by device and inode number.
    linked: HashMap<(u64, u64), InodeId>,
    todo: Vec<Dir>,
}

impl Merging<'_> {
    /// Puts the entries of a directory into the tree.
    fn merge(&mut self, dir: &Dir, found: Vec<Found>) -> Result<()> {
        for Found { name, metadata, inode } in found {
            let below = match &dir.path[..] {
                [] => name.to_vec(),
                path => [path, b"/", &name].concat(),
            };
            if !(self.keep)(&below, metadata.is_dir()) {
                continue;
            }
            let number = (metadata.dev(), metadata.ino());
            let has_names = metadata.nlink() > 1 && !metadata.is_dir();
            if let Some(linked) = self.linked.get(&number).filter(|_| has_names) {
                self.tree.link(dir.id, &name, *linked)?;
                continue;
            }
            let added = self.tree.put(dir.id, &name, inode?)?;
            if has_names {
                self.linked.insert(number, added);
            }
            if metadata.is_dir() {
                self.todo.push(Dir {
                    host: dir.host.join(std::ffi::OsStr::from_bytes(&name)).into(),
                    path: below,
                    id: added,
                });
            }
        }
        Ok(())
    }
}

fn meta(path: &Path, metadata: &Metadata, buf: &mut Vec<u8>) -> Result<Meta> {
    Ok(Meta {
        mode: metadata.mode() & perm::MASK,
        uid: metadata.uid(),
        gid: metadata.gid(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        xattrs: sys::xattrs(path, buf).map_err(Error::host(path))?,
    })
}

fn time(sec: i64, nsec: i64) -> Time {
    Time {
        sec,
        nsec: u32::try_from(nsec).unwrap_or(0),
    }
}

fn body(dir: &Arc<Path>, name: &[u8], host: &Path, metadata: &Metadata) -> Result<Body> {
    let kind = metadata.file_type();
    let device = metadata.rdev() as rustix::fs::Dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(if kind.is_dir() {
        Body::empty_dir()
    } else if kind.is_file() {
        let stamp = Stamp::of(metadata);
        let is_sparse = metadata.blocks() * STAT_BLOCK_BYTES < metadata.size();
        let data = match is_sparse {
            true => Some(data_of(host, metadata.size())?),
            false => None,
        };
        Body::File(Content::of_host(dir.clone(), name, stamp, data))
    } else if kind.is_symlink() {
        let target = fs::read_link(host).map_err(Error::host(host))?;
        Body::Symlink(target.as_os_str().as_bytes().into())
    } else if kind.is_char_device() {
        Body::Char { major, minor }
    } else if kind.is_block_device() {
        Body::Block { major, minor }
    } else if kind.is_fifo() {
        Body::Fifo
    } else {
        Body::Socket
    })
}

/// Whether the system is asked where holes are. Others than Linux are not: APFS of macOS has told
/// of holes where data was, so that copies lost it.
const ASKS_FOR_HOLES: bool = cfg!(target_os = "linux");

/// Offset and length of what is no hole.
fn data_of(path: &Path, size_bytes: u64) -> Result<Vec<(u64, u64)>> {
    if !ASKS_FOR_HOLES {
        return Ok(Vec::from_iter((size_bytes > 0).then_some((0, size_bytes))));
    }
    let file = File::open(path).map_err(Error::host(path))?;
    let mut data = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            // A file system that does not know: all of it is data.
            Err(rustix::io::Errno::INVAL) => at,
            Err(error) => return Err(Error::host(path)(error.into())),
        };
        let end = seek(&file, SeekFrom::Hole(start)).unwrap_or(size_bytes).min(size_bytes);
        if end <= start {
            break;
        }
        data.push((start, end - start));
        at = end;
    }
    Ok(data)
}
