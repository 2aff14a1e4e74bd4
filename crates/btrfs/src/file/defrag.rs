//! Defragmentation: runs of small extents that follow each other in the file are written anew, as
//! few large ones. The content and the times stay. What is shared with other files is shared no
//! more, as with the kernel's.

use std::ops::Range;
use std::sync::Arc;

use cowshed_vfs::Defrag;

use super::write::note_dirty;
use super::{read, writeback};
use crate::block::{BLOCK, EXTENT_BYTES_MAX, round_down, round_up};
use crate::compression::compress;
use crate::error::Result;
use crate::extent::{COMPRESSED_BYTES_MAX, Extent, Kind, Walk};
use crate::files::Files;
use crate::object::Inode;

/// Bytes read and made dirty at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Rewrites runs of extents smaller than wanted in a range; returns how many bytes were rewritten.
/// They are in the overlay when it returns, and durable after the next commit.
pub(crate) fn defragment(files: &Files, inode: &Arc<Inode>, range: Range<u64>, what: &Defrag) -> Result<u64> {
    files.store().txn().check_writable()?;
    let what = Defrag {
        target_bytes: what.target_bytes.clamp(2 * BLOCK, EXTENT_BYTES_MAX),
        ..*what
    };
    let _alone = inode.data.defragmenting.lock();
    writeback::flush(files, inode)?;
    inode.data.state.lock().defrag = Some(what);
    let rewritten = all_runs(files, inode, range, &what);
    inode.data.state.lock().defrag = None;
    rewritten
}

fn all_runs(files: &Files, inode: &Arc<Inode>, range: Range<u64>, what: &Defrag) -> Result<u64> {
    let mut pos = round_down(range.start);
    let mut rewritten = 0;
    loop {
        let size = round_up(inode.attr.lock().attr.size);
        // Whole blocks: what becomes dirty in part would lose the rest.
        let end = round_up(range.end.min(size));
        if pos >= end {
            return Ok(rewritten);
        }
        let Some(run) = next_run(inode, pos..end, what)? else {
            return Ok(rewritten);
        };
        rewritten += rewrite(files, inode, &run)?;
        pos = run.end;
    }
}

/// Why an extent should be written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Not,
    /// If it becomes part of something larger.
    WithOthers,
    Always,
}

fn wanted(extent: &Extent, what: &Defrag) -> Want {
    match &extent.kind {
        Kind::Inline { .. } | Kind::Hole => Want::Not,
        Kind::Disk(disk) if disk.is_prealloc => Want::Not,
        Kind::Disk(disk) => {
            let algorithm = what.compress.map(|how| compress::on_disk(how.algorithm()));
            let best = if disk.compression == 0 {
                what.target_bytes
            } else {
                COMPRESSED_BYTES_MAX.min(what.target_bytes)
            };
            if algorithm.is_some_and(|wanted| wanted != disk.compression) {
                Want::Always
            } else if extent.len_bytes < best {
                Want::WithOthers
            } else {
                Want::Not
            }
        }
    }
}

/// The first run of extents to write anew together, no longer than an extent may become (or one
/// that is longer).
fn next_run(inode: &Arc<Inode>, range: Range<u64>, what: &Defrag) -> Result<Option<Range<u64>>> {
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let mut run = 0..0;
    let mut count = 0;
    let mut is_wanted = false;
    while let Some(extent) = walk.next()? {
        let want = wanted(&extent, what);
        let fits = count > 0 && run.end == extent.start && extent.end() - run.start <= what.target_bytes;
        if want != Want::Not && fits {
            run.end = extent.end();
            count += 1;
            is_wanted = true;
        } else if is_wanted {
            break;
        } else {
            run = extent.range();
            count = usize::from(want != Want::Not);
        }
        is_wanted |= want == Want::Always;
    }
    Ok(is_wanted.then(|| run.start.max(range.start)..run.end.min(range.end)))
}

/// Makes a range dirty as it is, and writes it.
fn rewrite(files: &Files, inode: &Arc<Inode>, run: &Range<u64>) -> Result<u64> {
    let len_bytes = run.end - run.start;
    let mut space = files.store().space().reserve_data(len_bytes)?;
    {
        let _op = inode.lock.write();
        // The file may have been truncated meanwhile.
        let end = run.end.min(round_up(inode.attr.lock().attr.size));
        let mut at = run.start;
        let mut content = vec![0; PIECE_BYTES.min(len_bytes) as usize];
        while at < end {
            let len = (end - at).min(PIECE_BYTES);
            let piece = &mut content[..len as usize];
            read::read_range(files, inode, at, piece)?;
            // Dirty blocks hold zeros behind the end.
            let size = inode.attr.lock().attr.size;
            piece[size.saturating_sub(at).min(len) as usize..].fill(0);
            let mut state = inode.data.state.lock();
            let dirtied = state.dirty.write(at, piece);
            note_dirty(files, inode, &mut state, Some(space.split(len)), dirtied);
            at += len;
        }
    }
    writeback::flush(files, inode)?;
    Ok(len_bytes)
}
