//! Volumes with hardly any space left.
//!
//! A file that is not looked into takes nearly all space: it is preallocated behind its end, which
//! is at 0.

use anyhow::{Result, bail};
use cowshed_device_sim::Rng;
use cowshed_model::script::{Op, Prealloc};
use cowshed_vfs::{Error, FileSystem as _, NodeId};

use crate::rig::Player;
use crate::rig::{Fs, ROOT};

const FILLER: &str = "filler";
/// The filler grows in ever smaller steps, from this one down to a block.
const STEP_BYTES_MAX: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 4096;
/// What is given back in the end.
const LEFT_BYTES_MAX: u64 = 128 << 10;
/// Larger than any volume here.
const FILLER_BYTES_MAX: u64 = 1 << 40;

fn allocate(offset: u64, len: u64) -> Op {
    Op::fallocate(Prealloc::KeepSize, FILLER, offset, len)
}

/// Takes all space of the volume but for a little, how little the dice say.
pub(crate) fn fill(fs: &Fs, rng: &mut Rng) -> Result<()> {
    let player = Player::new(fs);
    let make = Op::write(FILLER.to_owned(), 0, 0, 0);
    player.apply(&make)?;
    let (mut at, mut step) = (0, STEP_BYTES_MAX);
    while step >= BLOCK_BYTES && at < FILLER_BYTES_MAX {
        match player.apply(&allocate(at, step)) {
            Ok(()) => at += step,
            Err(Error::NoSpace) => step /= 2,
            Err(error) => bail!("filling the volume: {error}"),
        }
    }
    let left = rng.below(LEFT_BYTES_MAX / BLOCK_BYTES) * BLOCK_BYTES;
    player.apply(&Op::Fallocate {
        path: FILLER.to_owned(),
        offset: at.saturating_sub(left),
        len: left.max(BLOCK_BYTES),
        how: Prealloc::Punch,
    })?;
    fs.syncfs(&ROOT, NodeId::ROOT)?;
    Ok(())
}

/// Gives all of it back.
pub(crate) fn make_room(player: &Player<'_>) -> Result<()> {
    player.apply(&Op::unlink(FILLER))?;
    player.apply(&Op::Sync)?;
    Ok(())
}

/// May the operation find no space? What was taken must be writable, and to delete must be
/// possible.
pub(crate) fn may_fail(op: &Op) -> bool {
    !matches!(
        op,
        Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Unlink { .. } | Op::Rmdir { .. }
    )
}
