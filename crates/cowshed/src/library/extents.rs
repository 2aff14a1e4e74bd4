//! Files and their extents: sharing, exchanging, showing, defragmenting.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use cowshed_btrfs::file::map::MapExtent;
use cowshed_btrfs::file::{Dedupe, Defrag, Exchange, Freshness};
use cowshed_vfs::{Error as Errno, OpenFlags};

use super::{File, Result};

impl File {
    /// The files lie on one volume, opened once.
    fn same_volume(&self, other: &File) -> Result<()> {
        let is_same = Arc::ptr_eq(self.node().shared(), other.node().shared());
        self.at(if is_same { Ok(()) } else { Err(Errno::CrossDevice) })
    }

    /// Makes a range of this file share the extents of a range of `src`, as FICLONERANGE does: `dst_offset_bytes` and
    /// `src_offset_bytes` are multiples of 4096, and so is `len_bytes` unless it ends with the source; 0: to its end.
    ///
    /// # Errors
    /// Not opened for writing (or for appending only), the source not for reading; misaligned, overlapping, or beyond the
    /// end of the source; only one of both has checksums; no space.
    pub fn clone_range(&self, dst_offset_bytes: u64, src: &File, src_offset_bytes: u64, len_bytes: u64) -> Result<()> {
        self.same_volume(src)?;
        src.require(OpenFlags::READ)?;
        self.require(OpenFlags::WRITE)?;
        self.at(if self.appends() { Err(Errno::BadHandle) } else { Ok(()) })?;
        let (from, to) = (src.node().id(), self.node().id());
        let fs = self.node().fs();
        self.at(fs.clone_range((from, src_offset_bytes), (to, dst_offset_bytes), len_bytes))
    }

    /// Makes a range of this file share the extents of a range of `src` if both hold the same; at most 16 MiB at once.
    ///
    /// # Errors
    /// As [`File::clone_range`], and a range beyond the end of either file.
    pub fn dedupe_range(
        &self,
        dst_offset_bytes: u64,
        src: &File,
        src_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Dedupe> {
        self.same_volume(src)?;
        src.require(OpenFlags::READ)?;
        let (from, to) = (src.node().id(), self.node().id());
        let fs = self.node().fs();
        self.at(fs.dedupe_range((from, src_offset_bytes), (to, dst_offset_bytes), len_bytes))
    }

    /// Exchanges a range of this file with one of `other`, in one step: a crash leaves both as before, or both exchanged.
    ///
    /// # Errors
    /// Either is not opened for reading and writing; misaligned, overlapping, beyond an end; more than 262,144 extents;
    /// `EBUSY` if `other` is not as [`Exchange::fresh_b`] says.
    pub fn exchange_range(&self, other: &File, what: &Exchange) -> Result<()> {
        self.same_volume(other)?;
        for file in [self, other] {
            file.require(OpenFlags::READ)?;
            file.require(OpenFlags::WRITE)?;
        }
        self.at(self
            .node()
            .fs()
            .exchange_range(self.node().id(), other.node().id(), what))
    }

    /// What the file is like now, for an [`Exchange`] that shall fail if it has changed since.
    ///
    /// # Errors
    /// None that a healthy volume has.
    pub fn freshness(&self) -> Result<Freshness> {
        self.at(self.node().fs().freshness(self.node().id()))
    }

    /// Shows the extents that overlap a range of bytes, in order; holes are what lies between. `wants_shared`: find out
    /// which are shared with others, which takes time.
    ///
    /// # Errors
    /// The volume is damaged there.
    pub fn extents(&self, range: Range<u64>, wants_shared: bool, mut take: impl FnMut(&MapExtent)) -> Result<()> {
        let fs = self.node().fs();
        self.at(fs.map_file(self.node().id(), range, wants_shared, &mut |extent| {
            take(extent);
            ControlFlow::Continue(())
        }))
    }

    /// Rewrites runs of extents smaller than `target_bytes` as large ones; returns the bytes rewritten.
    ///
    /// # Errors
    /// Not opened for writing, no space.
    pub fn defragment(&self, range: Range<u64>, target_bytes: u64) -> Result<u64> {
        self.require(OpenFlags::WRITE)?;
        let what = Defrag {
            target_bytes,
            compress: None,
        };
        self.at(self.node().fs().defragment(self.node().id(), range, &what))
    }
}
