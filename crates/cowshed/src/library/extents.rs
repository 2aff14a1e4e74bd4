//! Files and their extents: allocating, seeking, sharing, exchanging, showing, defragmenting.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use cowshed_vfs::{
    Compression, Dedupe, Defrag, Error as Errno, Exchange, FallocateFlags, Freshness, MapExtent, OpenFlags, SeekKind,
};

use super::{File, Result};

impl File {
    /// The files lie on one volume, opened once.
    fn same_volume(&self, other: &File) -> Result<()> {
        let is_same = Arc::ptr_eq(self.node().shared(), other.node().shared());
        self.at(if is_same { Ok(()) } else { Err(Errno::CrossDevice) })
    }

    /// Changes what is allocated for a range of bytes, as fallocate(2) does. [`File::allocate`],
    /// [`File::punch_hole`] and [`File::zero_range`] are short for its usual modes.
    ///
    /// # Errors
    /// Not opened for writing; `EINVAL` for an empty range; `EFBIG` behind the largest file; no
    /// space: nothing has changed then, but for a part of what was to be allocated. `EOPNOTSUPP`
    /// for modes that btrfs does not have: collapsing, inserting and unsharing ranges, and punching
    /// without keeping the size.
    pub fn fallocate(&self, mode: FallocateFlags, range: Range<u64>) -> Result<()> {
        self.require(OpenFlags::WRITE)?;
        let len_bytes = range.end.saturating_sub(range.start);
        let (fs, ctx, node) = (self.node().fs(), self.node().ctx(), self.node().id());
        self.at(fs.fallocate(ctx, node, self.handle(), range.start, len_bytes, mode))
    }

    /// Allocates what a range does not have yet, so that the next write there does not fail for
    /// want of space, and lengthens the file to its end. What is allocated reads as zeros.
    ///
    /// # Errors
    /// As [`File::fallocate`].
    pub fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.fallocate(FallocateFlags::empty(), range)
    }

    /// Makes a hole; the size stays. Blocks of 4096 bytes that the range covers in part get zeros.
    ///
    /// # Errors
    /// As [`File::fallocate`]; a hole of whole blocks needs no space for data.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<()> {
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range)
    }

    /// Puts allocated zeros in place of what a range holds, and lengthens the file to its end.
    ///
    /// # Errors
    /// As [`File::fallocate`].
    pub fn zero_range(&self, range: Range<u64>) -> Result<()> {
        self.fallocate(FallocateFlags::ZERO_RANGE, range)
    }

    /// The first data at or behind an offset in bytes; `None` where only holes follow. What was
    /// written but is not on disk yet is data, what was allocated and never written is a hole.
    ///
    /// # Errors
    /// The volume is damaged there.
    pub fn seek_data(&self, offset_bytes: u64) -> Result<Option<u64>> {
        self.seek_to(offset_bytes, SeekKind::Data)
    }

    /// The first hole at or behind an offset in bytes, the end of the file being one; `None` for an
    /// offset at or behind the end.
    ///
    /// # Errors
    /// The volume is damaged there.
    pub fn seek_hole(&self, offset_bytes: u64) -> Result<Option<u64>> {
        self.seek_to(offset_bytes, SeekKind::Hole)
    }

    fn seek_to(&self, offset_bytes: u64, what: SeekKind) -> Result<Option<u64>> {
        let (fs, ctx, node) = (self.node().fs(), self.node().ctx(), self.node().id());
        match fs.lseek(ctx, node, self.handle(), offset_bytes, what) {
            Err(Errno::NoSuchDevice) => Ok(None),
            found => self.at(found.map(Some)),
        }
    }

    /// Copies a range of `src` to this file, as copy_file_range(2) does: whole blocks are shared
    /// where both offsets lie alike in their blocks, the rest is copied. Returns the bytes copied:
    /// fewer than asked for at the end of the source, or where an error struck in the middle, which
    /// the next call reports; and at the end of the largest file.
    ///
    /// # Errors
    /// Not opened for writing (or for appending only), the source not for reading; `EINVAL` for
    /// ranges of one file that overlap, and for offsets behind those of every file; `EFBIG` where
    /// no byte fits behind the offset, `EOVERFLOW` for an end behind all numbers; `EXDEV` for files
    /// of two volumes; no space.
    pub fn copy_range(&self, dst_offset_bytes: u64, src: &File, src_offset_bytes: u64, len_bytes: u64) -> Result<u64> {
        self.target_of(src)?;
        let from = (src.node().id(), src.handle(), src_offset_bytes);
        let to = (self.node().id(), self.handle(), dst_offset_bytes);
        let (fs, ctx) = (self.node().fs(), self.node().ctx());
        self.at(fs.copy_file_range(ctx, from, to, len_bytes))
    }

    /// May ranges of `src` come here?
    fn target_of(&self, src: &File) -> Result<()> {
        self.same_volume(src)?;
        src.require(OpenFlags::READ)?;
        self.require(OpenFlags::WRITE)?;
        self.at(if self.appends() { Err(Errno::BadHandle) } else { Ok(()) })
    }

    /// Makes a range of this file share the extents of a range of `src`, as FICLONERANGE does:
    /// `dst_offset_bytes` and `src_offset_bytes` are multiples of 4096, and so is `len_bytes`
    /// unless it ends with the source; 0: to its end.
    ///
    /// # Errors
    /// Not opened for writing (or for appending only), the source not for reading; misaligned,
    /// overlapping, or beyond the end of the source or of the largest file (`EINVAL`); only one of
    /// both has checksums; no space.
    pub fn clone_range(&self, dst_offset_bytes: u64, src: &File, src_offset_bytes: u64, len_bytes: u64) -> Result<()> {
        self.target_of(src)?;
        let (from, to) = (src.node().id(), self.node().id());
        let fs = self.node().fs();
        self.at(fs.clone_range(None, (from, src_offset_bytes), (to, dst_offset_bytes), len_bytes))
    }

    /// Makes a range of this file share the extents of a range of `src` if both hold the same.
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

    /// Exchanges a range of this file with one of `other`, in one step: a crash leaves both as
    /// before, or both exchanged.
    ///
    /// # Errors
    /// Either is not opened for reading and writing; misaligned, overlapping, beyond an end; more
    /// than 262,144 extents; `EBUSY` if `other` is not as [`Exchange::fresh_b`] says.
    pub fn exchange_range(&self, other: &File, what: &Exchange) -> Result<()> {
        self.same_volume(other)?;
        for file in [self, other] {
            file.require(OpenFlags::READ)?;
            file.require(OpenFlags::WRITE)?;
        }
        self.at(self
            .node()
            .fs()
            .exchange_range(None, self.node().id(), other.node().id(), what))
    }

    /// What the file is like now, for an [`Exchange`] that shall fail if it has changed since.
    ///
    /// # Errors
    /// None that a healthy volume has.
    pub fn freshness(&self) -> Result<Freshness> {
        self.at(self.node().fs().freshness(self.node().id()))
    }

    /// Shows the extents that overlap a range of bytes, in order; holes are what lies between.
    /// `wants_shared`: find out which are shared with others, which takes time.
    ///
    /// # Errors
    /// The volume is damaged there.
    pub fn extents(&self, range: Range<u64>, wants_shared: bool, mut take: impl FnMut(&MapExtent)) -> Result<()> {
        let fs = self.node().fs();
        self.at(fs.map_extents(self.node().id(), range, wants_shared, &mut |extent| {
            take(extent);
            ControlFlow::Continue(())
        }))
    }

    /// Rewrites runs of extents smaller than `target_bytes` as large ones; returns the bytes
    /// rewritten. With `compress` also what is compressed otherwise, or not at all. Content and
    /// times stay; what is shared with others is shared no more.
    ///
    /// # Errors
    /// Not opened for writing, no space.
    pub fn defragment(&self, range: Range<u64>, target_bytes: u64, compress: Option<Compression>) -> Result<u64> {
        self.require(OpenFlags::WRITE)?;
        let what = Defrag { target_bytes, compress };
        self.at(self.node().fs().defragment(self.node().id(), range, &what))
    }
}
