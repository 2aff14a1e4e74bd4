//! Listing directories in the order of their indexes, which are the cookies too: they never change
//! and never come again.

use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::view;
use cowshed_vfs::FileKind;

use super::names::{self, Found};
use super::{FIRST_INDEX, LAST_INDEX};
use crate::error::{Error, Result, StoreError};
use crate::object::Inode;

/// One name of a directory, without `.` and `..`.
#[derive(Debug)]
pub struct ListedEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) found: Found,
    pub(crate) kind: FileKind,
    /// Where to go on after this entry: see [`list`].
    pub(crate) cookie: u64,
}

/// Calls `sink` for each name from a cookie on (0: all) until it breaks, or where `begin_listing`
/// said.
pub fn list(
    dir: &Arc<Inode>,
    cookie: u64,
    mut sink: impl FnMut(&ListedEntry<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let from = names::index_key(dir.ino, cookie.max(FIRST_INDEX));
    let mut cursor = dir.tree.cursor_type(from);
    let end = super::listing_end(dir);
    while let Some((key, item)) = cursor.next()? {
        if key.offset >= end {
            break;
        }
        let corrupt = |what: &str| {
            Error::Store(StoreError::CorruptTree {
                tree: dir.tree.id(),
                what: format!("{key}: {what}"),
            })
        };
        let entry = view::dir_entries(&item)
            .next()
            .ok_or_else(|| corrupt("holds no entry"))?;
        if key.offset > LAST_INDEX {
            return Err(corrupt("index is beyond every limit"));
        }
        let listed = ListedEntry {
            name: entry.name,
            found: names::target_of(dir.tree.id(), &entry)?,
            kind: names::kind_of(entry.head.ty).ok_or_else(|| corrupt("has an unknown type"))?,
            cookie: key.offset + 1,
        };
        if sink(&listed)?.is_break() {
            break;
        }
    }
    Ok(())
}
