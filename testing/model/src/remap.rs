//! Sharing and exchanging ranges: FICLONERANGE, FIDEDUPERANGE, XFS_IOC_EXCHANGE_RANGE, as their
//! manual pages and the kernel's btrfs have them.

use std::ops::Range;

use cowshed_vfs::{Error, Result, Timestamp};

use crate::op::chattr;
use crate::{Answer, BLOCK_BYTES, Id, Model, Op, Outcome};

fn round_up(n: u64) -> u64 {
    n.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Model {
    pub(crate) fn remap(&mut self, op: &Op, now: Timestamp) -> Outcome {
        let touched = op.touched();
        let (one, other) = (self.resolve(&touched[0])?, self.resolve(&touched[1])?);
        match op {
            Op::Clone {
                src_offset,
                dst_offset,
                len,
                ..
            } => self.clone_range((one, *src_offset), (other, *dst_offset), *len, now),
            Op::Dedupe {
                src_offset,
                dst_offset,
                len,
                ..
            } => self.dedupe((one, *src_offset), (other, *dst_offset), *len),
            Op::Exchange {
                a_offset,
                b_offset,
                len,
                to_eof,
                ..
            } => self.exchange((one, *a_offset), (other, *b_offset), (*len, *to_eof), now),
            _ => unreachable!("only these are given"),
        }
    }

    /// Both have checksums, or none of them.
    fn may_share(&self, a: Id, b: Id) -> bool {
        (self.node(a).flags ^ self.node(b).flags) & chattr::NOCOW == 0
    }

    /// Sizes of two files that may share. Errors: as of writing, `Invalid` (only one has
    /// checksums).
    fn sizes(&self, a: Id, b: Id) -> Result<(u64, u64)> {
        let sizes = (self.file_content(a)?.size_bytes, self.file_content(b)?.size_bytes);
        if self.may_share(a, b) {
            Ok(sizes)
        } else {
            Err(Error::Invalid)
        }
    }

    /// A change of content strips set-id bits and sets the times.
    fn remapped(&mut self, id: Id, now: Timestamp) {
        let node = self.node_mut(id);
        node.strip_set_id();
        node.changed(now);
    }

    fn clone_range(&mut self, src: (Id, u64), dst: (Id, u64), len: u64, now: Timestamp) -> Outcome {
        let (src_size, dst_size) = self.sizes(src.0, dst.0)?;
        if dst.1 > Self::FILE_BYTES_MAX {
            return Err(Error::Invalid);
        }
        let len = match len {
            0 => src_size.checked_sub(src.1).ok_or(Error::Invalid)?,
            len => len,
        };
        if len == 0 {
            return Ok(Answer::Done);
        }
        if !(src.1 | dst.1).is_multiple_of(BLOCK_BYTES) {
            return Err(Error::Invalid);
        }
        let from = src.1..src.1.checked_add(len).ok_or(Error::Invalid)?;
        let to = dst.1..dst.1.checked_add(len).ok_or(Error::Invalid)?;
        if from.end > src_size || to.end > Self::FILE_BYTES_MAX {
            return Err(Error::Invalid);
        }
        let ends_with_both = from.end == src_size && to.end >= dst_size;
        if !len.is_multiple_of(BLOCK_BYTES) && !ends_with_both {
            return Err(Error::Invalid);
        }
        if src.0 == dst.0 && overlap(&(from.start..round_up(from.end)), &(to.start..round_up(to.end))) {
            return Err(Error::Invalid);
        }
        let data = self.file_content(src.0)?.part(from);
        self.node_mut(dst.0).content()?.put_part(to.start, data);
        self.remapped(dst.0, now);
        Ok(Answer::Done)
    }

    fn dedupe(&mut self, src: (Id, u64), dst: (Id, u64), len: u64) -> Outcome {
        let (src_size, dst_size) = self.sizes(src.0, dst.0)?;
        if !(src.1 | dst.1).is_multiple_of(BLOCK_BYTES) {
            return Err(Error::Invalid);
        }
        let end = |from: u64| from.checked_add(len).ok_or(Error::Invalid);
        let (src_end, dst_end) = (end(src.1)?, end(dst.1)?);
        if src_end > src_size || dst_end > dst_size {
            return Err(Error::Invalid);
        }
        let ends_with_both = src_end == src_size && dst_end == dst_size;
        let len = if ends_with_both { len } else { len - len % BLOCK_BYTES };
        let (from, to) = (src.1..src.1 + len, dst.1..dst.1 + len);
        if src.0 == dst.0 && len > 0 && overlap(&(from.start..round_up(from.end)), &(to.start..round_up(to.end))) {
            return Err(Error::Invalid);
        }
        let same = self.file_content(src.0)?.part(from) == self.file_content(dst.0)?.part(to);
        Ok(if same { Answer::Count(len) } else { Answer::Differs })
    }

    fn exchange(&mut self, a: (Id, u64), b: (Id, u64), (len, to_eof): (u64, bool), now: Timestamp) -> Outcome {
        let (a_size, b_size) = self.sizes(a.0, b.0)?;
        let (a_len, b_len) = match to_eof {
            true => (
                a_size.checked_sub(a.1).ok_or(Error::Invalid)?,
                b_size.checked_sub(b.1).ok_or(Error::Invalid)?,
            ),
            false => (len, len),
        };
        let end = |from: u64, len: u64| from.checked_add(len).ok_or(Error::Invalid);
        let (in_a, in_b) = (a.1..end(a.1, a_len)?, b.1..end(b.1, b_len)?);
        let ends_at_both = in_a.end == a_size && in_b.end == b_size;
        let is_aligned =
            (a.1 | b.1).is_multiple_of(BLOCK_BYTES) && (ends_at_both || (a_len | b_len).is_multiple_of(BLOCK_BYTES));
        let overlaps = a.0 == b.0 && (to_eof || overlap(&in_a, &in_b));
        if in_a.end > a_size || in_b.end > b_size || !is_aligned || overlaps {
            return Err(Error::Invalid);
        }
        if end(a.1, b_len)?.max(end(b.1, a_len)?) > Self::FILE_BYTES_MAX {
            return Err(Error::FileTooBig);
        }
        if a_len == 0 && b_len == 0 {
            return Ok(Answer::Done);
        }
        let from_a = self.file_content(a.0)?.part(in_a);
        let from_b = self.file_content(b.0)?.part(in_b);
        for ((id, offset), other_len, part) in [(a, b_len, from_b), (b, a_len, from_a)] {
            let content = self.node_mut(id).content()?;
            if to_eof {
                content.truncate(offset + other_len);
            }
            content.put_part(offset, part);
            self.remapped(id, now);
        }
        Ok(Answer::Done)
    }
}
