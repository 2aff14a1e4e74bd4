//! Single operations and their parts, drawn from a small set of names so that they meet each other.

use cowshed_device_sim::Rng;
use cowshed_model::script::{BLOCK_BYTES, Data, How, Op, Staged};

const NAMES: u64 = 6;
const BIG_BYTES: u64 = 3 << 20;
pub(crate) const FILE_BYTES_MAX: u64 = 300 << 10;

pub(crate) fn dir(rng: &mut Rng) -> String {
    ["", "p/", "q/", "p/r/"][rng.index(4)].to_owned()
}
pub(crate) fn path(rng: &mut Rng) -> String {
    format!("{}{}", dir(rng), char::from(b'a' + rng.below(NAMES) as u8))
}
pub(crate) fn dir_path(rng: &mut Rng) -> String {
    ["p", "q", "p/r", "s", "q/r"][rng.index(5)].to_owned()
}
/// Sizes from a few bytes (inline) to several extents' worth, the small ones more often; now and
/// then one that may need a new chunk.
pub(crate) fn len(rng: &mut Rng) -> u64 {
    if rng.one_in(40) {
        return BIG_BYTES;
    }
    let bits = rng.below(18);
    1 + rng.below(1 << bits)
}

pub(crate) fn data(rng: &mut Rng) -> Data {
    Data::Fill {
        len: len(rng) as usize,
        fill: rng.next_u64(),
    }
}

fn blocks(rng: &mut Rng) -> u64 {
    rng.below(24) << 12
}

pub(crate) fn clone_range(rng: &mut Rng) -> Op {
    let aligned = rng.one_in(2);
    Op::CloneRange {
        from: path(rng),
        from_offset: if rng.one_in(2) { 0 } else { blocks(rng) },
        to: path(rng),
        to_offset: if rng.one_in(2) { 0 } else { blocks(rng) },
        // Nothing means all to the end.
        len: if aligned { blocks(rng) } else { 0 },
    }
}

/// Mostly from the same offset on, where clones have left what is the same.
pub(crate) fn dedupe(rng: &mut Rng) -> Op {
    let offset = if rng.one_in(2) { 0 } else { blocks(rng) };
    Op::dedupe(
        path(rng),
        offset,
        path(rng),
        if rng.one_in(4) { blocks(rng) } else { offset },
        blocks(rng).max(BLOCK_BYTES),
    )
}

pub(crate) fn defrag(rng: &mut Rng, path: String) -> Op {
    // Files in pieces are not long.
    const PART_BYTES_MAX: u64 = 64 << 10;
    const HOW: [&str; 5] = ["lzo", "zstd:1", "zlib", "zstd:3", "zstd:-3"];
    let is_whole = !rng.one_in(3);
    let how = rng.one_in(2).then(|| HOW[rng.index(HOW.len())]);
    Op::defrag(
        path,
        if is_whole { 0 } else { rng.below(PART_BYTES_MAX / 2) },
        if is_whole {
            u64::MAX
        } else {
            1 + rng.below(PART_BYTES_MAX)
        },
        [32 << 10, 256 << 10, 1 << 30][rng.index(3)],
        how.map(|how| how.parse().expect("it exists")),
    )
}

pub(crate) fn swap(rng: &mut Rng) -> Op {
    let (a, b) = (path(rng), path(rng));
    let to_end = rng.one_in(2);
    Op::swap(
        a,
        b,
        if rng.one_in(2) { 0 } else { blocks(rng) },
        (!to_end).then(|| blocks(rng)),
    )
}

pub(crate) fn group(rng: &mut Rng) -> Op {
    let files = if rng.one_in(2) { 1 } else { 1 + rng.below(3) };
    let paths: Vec<String> = (0..files).map(|_| path(rng)).collect();
    let writes = (0..1 + rng.below(6)).map(|_| Staged {
        path: paths[rng.index(paths.len())].clone(),
        offset: rng.below(FILE_BYTES_MAX / 2),
        len: 1 + rng.below(20_000) as usize,
        fill: rng.next_u64(),
    });
    Op::Group {
        writes: writes.collect(),
        commit: !rng.one_in(5),
    }
}

pub(crate) fn write_sync(rng: &mut Rng, path: String) -> Op {
    Op::Write {
        path,
        offset: if rng.one_in(2) {
            0
        } else {
            rng.below(FILE_BYTES_MAX / 2)
        },
        data: data(rng),
        how: if rng.one_in(2) { How::DataSync } else { How::Sync },
    }
}

pub(crate) fn tmpfile(rng: &mut Rng, to: String) -> Op {
    Op::Temporary {
        // Often of the directory of its name to come.
        dir: match rng.one_in(3) {
            true => dir(rng),
            false => to.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned(),
        },
        to,
        data: data(rng),
        fsync: rng.one_in(2),
    }
}
