//! Which data of a file is compressed, and how. Facts from the btrfs documentation ("Compression")
//! and from watching the kernel (docs/design/compression.md):
//!
//! ```text
//!   file without checksums or copy on write   never
//!   compress-force=                           always (the property's algorithm, else the mount's)
//!   flag NOCOMPRESS                           no
//!   property, flag COMPRESS, compress=        where a sample looks compressible; by the first of
//!                                             these that says how
//! ```
//!
//! What does not become smaller by a block is stored as it is; where neither option nor property
//! insisted, the file is marked NOCOMPRESS then and left alone from there on.

use std::borrow::Cow;
use std::ops::Range;

use cowshed_vfs::{Algorithm, Compression};

use super::place::{Run, slices};
use crate::block::{BLOCK, round_up};
use crate::compression::compress;
use crate::compression::entropy;
use crate::error::Result;
use crate::extent::COMPRESSED_BYTES_MAX;
use crate::files::Files;
use crate::object::INLINE_BYTES_MAX;
use crate::object::{Inode, flags};
use crate::xattr::{self, props};

/// How the data of a file is to be compressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    how: Compression,
    /// No sample is taken.
    force: bool,
    /// What fails to become smaller marks the file.
    marks: bool,
    /// What the file had before became smaller ([`DataState::packs_well`]): a sample is taken only
    /// of what does not.
    ///
    /// [`DataState::packs_well`]: crate::pagecache::DataState::packs_well
    is_hopeful: bool,
}

/// What became of some data.
#[derive(Debug)]
pub(super) enum Packed {
    Smaller {
        algorithm: Algorithm,
        /// For extents filled up to whole blocks with zeros.
        bytes: Vec<u8>,
    },
    /// Stored as it is; `marks`: the file does not compress.
    Raw { marks: bool },
}

impl Packed {
    pub(crate) fn marks(&self) -> bool {
        matches!(self, Self::Raw { marks: true })
    }
    pub(crate) fn is_smaller(&self) -> bool {
        matches!(self, Self::Smaller { .. })
    }
}

/// How data of the inode that is written now is compressed; `None`: not at all.
pub(super) fn choose(files: &Files, inode: &Inode) -> Result<Option<Choice>> {
    let bits = inode.flags();
    let policy = files.objects().policy().compress;
    if bits & (flags::NODATACOW | flags::NODATASUM) != 0 {
        return Ok(None);
    }
    let (defrag, is_hopeful) = {
        let state = inode.data.state.lock();
        (state.defrag, state.packs_well)
    };
    if let Some(how) = defrag.and_then(|defrag| defrag.compress) {
        return Ok(Some(Choice {
            how,
            force: true,
            marks: false,
            is_hopeful,
        }));
    }
    let force = policy.is_some_and(|policy| policy.force);
    if !force && bits & flags::NOCOMPRESS != 0 {
        return Ok(None);
    }
    let mounted = policy.map(|policy| policy.how);
    let mut property = None;
    if bits & flags::COMPRESS != 0 {
        let value = xattr::load(inode, props::COMPRESSION_NAME)?;
        property = value.and_then(|value| compress::of_property(&value, mounted));
    }
    let by_flag = || (bits & flags::COMPRESS != 0).then_some(Compression::new(Algorithm::Zlib, 0));
    let how = property.or(mounted).or_else(by_flag);
    Ok(how.map(|how| Choice {
        how,
        force,
        marks: !force && property.is_none(),
        is_hopeful,
    }))
}

/// Did so many of the chunks that were tried become smaller that the next ones are tried without a
/// sample?
pub(super) fn went_well(chunks: usize, smaller: usize) -> bool {
    smaller > 0 && smaller * 4 >= chunks * 3
}

/// The parts of a range that are compressed each by itself.
pub(super) fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = range.clone().step_by(COMPRESSED_BYTES_MAX as usize);
    starts.map(move |start| start..range.end.min(start + COMPRESSED_BYTES_MAX))
}

/// Compresses one chunk of a run.
pub(super) fn pack_chunk(files: &Files, choice: Choice, run: &Run, range: &Range<u64>) -> Packed {
    let len = range.end - range.start;
    // A block more or less is the least that can be saved.
    if len <= BLOCK {
        return Packed::Raw { marks: false };
    }
    let data = contiguous(run, range);
    let mut packed = pack(files, choice, &data, len - BLOCK);
    if let Packed::Smaller { bytes, .. } = &mut packed {
        bytes.resize(round_up(bytes.len() as u64) as usize, 0);
    }
    packed
}

/// Compresses all of a file that fits one block, to be inline data: the first `len` bytes of
/// `block`, which is zero behind them.
///
/// What was watched of the kernel: it samples the whole block; what fits inline no better than it
/// is does not mark the file, only what does not become smaller at all, and LZO has a whole block
/// of room for that.
pub(super) fn pack_inline(files: &Files, choice: Choice, block: &[u8], len: usize) -> Packed {
    if !choice.force && !entropy::looks_compressible(block) {
        return Packed::Raw { marks: false };
    }
    let algorithm = choice.how.algorithm();
    let limit_bytes = match algorithm {
        Algorithm::Lzo => BLOCK as usize,
        Algorithm::Zlib | Algorithm::Zstd => len - 1,
    };
    match files.data().encoders.compress(choice.how, &block[..len], limit_bytes) {
        Some(bytes) if bytes.len() < len && bytes.len() as u64 <= INLINE_BYTES_MAX => {
            Packed::Smaller { algorithm, bytes }
        }
        Some(_) => Packed::Raw { marks: false },
        None => Packed::Raw { marks: choice.marks },
    }
}

fn pack(files: &Files, choice: Choice, data: &[u8], limit_bytes: u64) -> Packed {
    let looks_compressible = || choice.force || entropy::looks_compressible(data);
    if !choice.is_hopeful && !looks_compressible() {
        return Packed::Raw { marks: false };
    }
    match files.data().encoders.compress(choice.how, data, limit_bytes as usize) {
        Some(bytes) => Packed::Smaller {
            algorithm: choice.how.algorithm(),
            bytes,
        },
        // What a sample would have kept from being tried says nothing of the file.
        None => Packed::Raw {
            marks: choice.marks && (!choice.is_hopeful || looks_compressible()),
        },
    }
}

/// The data of a range of a run in one piece.
fn contiguous<'r>(run: &'r Run, range: &Range<u64>) -> Cow<'r, [u8]> {
    let mut parts = slices(run, range);
    match (parts.next(), parts.next()) {
        (Some(all), None) => Cow::Borrowed(all),
        _ => slices(run, range).collect::<Vec<_>>().concat().into(),
    }
}
