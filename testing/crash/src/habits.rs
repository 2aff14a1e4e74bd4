//! What programs do around fsync, in short sequences on the names of [`crate::workload`].

use cowshed_device_sim::Rng;
use cowshed_model::script::{BLOCK_BYTES, Data, Op, Prealloc};

use crate::draw::{self, dir_path, len, path};

fn write(rng: &mut Rng, path: &str) -> Op {
    Op::write(
        path,
        if rng.one_in(3) { rng.below(100_000) } else { 0 },
        len(rng) as usize,
        rng.next_u64(),
    )
}

/// The directory of a path; the top directory has a name, too.
fn parent(path: &str) -> String {
    path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned()
}

fn clone_all(from: &str, to: &str) -> Op {
    Op::clone_range(from, 0, to, 0, 0)
}

/// An fsync of one of them, or an fdatasync, or none.
fn maybe_fsync(rng: &mut Rng, paths: &[&str]) -> Option<Op> {
    let choice = rng.index(paths.len() + 1);
    let is_data = rng.one_in(4);
    paths.get(choice).map(|path| {
        if is_data {
            Op::fdatasync(*path)
        } else {
            Op::fsync(*path)
        }
    })
}

/// One habit.
pub(crate) fn one(rng: &mut Rng) -> Vec<Op> {
    match rng.below(24) {
        16 => long_names(rng),
        17 => synced_writes(rng),
        18 | 19 => temporary(rng),
        20 | 21 => the_same(rng),
        22 | 23 => fragments(rng),
        12 | 13 => remaps(rng),
        14 => groups(rng),
        15 => in_place(rng),
        0..=2 => data(rng),
        3 | 4 => replace(rng),
        5 | 6 => names(rng),
        7 => links(rng),
        8 => directories(rng),
        9 => made_again(rng),
        10 => attributes(rng),
        _ => exchange(rng),
    }
}

fn data(rng: &mut Rng) -> Vec<Op> {
    let file = path(rng);
    let mut ops = vec![write(rng, &file), Op::fsync(&file)];
    let (offset, len) = (rng.below(32 << 12), len(rng));
    ops.push(match rng.below(6) {
        5 => Op::fallocate(Prealloc::Zero, file.clone(), offset, len),
        0 => Op::fallocate(Prealloc::Punch, file.clone(), offset, len),
        1 => Op::truncate(file.clone(), offset),
        2 => Op::copy(path(rng), 0, file.clone(), 0, (1 + rng.below(16)) << 12),
        3 => Op::fallocate(
            if rng.one_in(2) {
                Prealloc::KeepSize
            } else {
                Prealloc::Extend
            },
            file.clone(),
            offset & !4095,
            len,
        ),
        _ => write(rng, &file),
    });
    ops.extend(maybe_fsync(rng, &[&file, &file]));
    ops
}

/// What a journal does: each write is durable when it returns; another file is written beside it.
fn synced_writes(rng: &mut Rng) -> Vec<Op> {
    let (journal, file) = (path(rng), path(rng));
    let mut ops = Vec::new();
    for _ in 0..1 + rng.below(3) {
        ops.push(draw::write_sync(rng, journal.clone()));
        if rng.one_in(2) {
            ops.push(write(rng, &file));
        }
    }
    ops.extend(maybe_fsync(rng, &[&file, &journal]));
    ops
}

/// A file that gets its name when it is complete, and more of it later.
fn temporary(rng: &mut Rng) -> Vec<Op> {
    let to = path(rng);
    let mut ops = Vec::new();
    if rng.one_in(2) {
        ops.push(Op::unlink(&to));
    }
    ops.push(draw::tmpfile(rng, to.clone()));
    ops.extend(maybe_fsync(rng, &[&to, &parent(&to)]));
    if rng.one_in(3) {
        ops.push(write(rng, &to));
        ops.extend(maybe_fsync(rng, &[&to, &parent(&to)]));
    }
    ops
}

fn replace(rng: &mut Rng) -> Vec<Op> {
    let file = path(rng);
    let temporary = format!("{file}.tmp");
    let mut ops = vec![write(rng, &temporary)];
    if !rng.one_in(4) {
        ops.push(Op::fsync(&temporary));
    }
    ops.push(Op::rename(&temporary, &file));
    ops.extend(maybe_fsync(rng, &[&file, &parent(&file)]));
    ops
}

fn names(rng: &mut Rng) -> Vec<Op> {
    let (from, to) = (path(rng), path(rng));
    let mut ops = Vec::new();
    if rng.one_in(2) {
        ops.extend([write(rng, &from), Op::fsync(&from)]);
    }
    ops.push(Op::rename(&from, &to));
    if rng.one_in(3) {
        ops.push(write(rng, &from));
    }
    ops.extend(maybe_fsync(rng, &[&to, &from, &parent(&to), &parent(&from)]));
    ops
}

/// So many long names of one file that they outgrow half of a small leaf, and often a whole one:
/// the last of them are extended references then. Some are taken away again.
fn long_names(rng: &mut Rng) -> Vec<Op> {
    let (file, dir, letter) = (path(rng), draw::dir(rng), rng.below(3));
    let count = 4 + rng.below(26);
    let long = |n: u64| format!("{dir}{}{n:0>180}", char::from(b'x' + letter as u8));
    let mut ops = vec![write(rng, &file)];
    let synced = rng.below(2 * count);
    for n in 0..count {
        ops.push(Op::link(file.clone(), long(n)));
        if n == synced {
            ops.push(Op::fsync(&file));
        }
    }
    for _ in 0..rng.below(6) {
        let name = long(rng.below(count));
        ops.push(match rng.below(3) {
            0 => Op::rename(&name, path(rng)),
            1 => Op::rename(path(rng), &name),
            _ => Op::unlink(&name),
        });
        ops.extend(maybe_fsync(rng, &[&file, &long(0), &dir]));
    }
    ops
}

fn links(rng: &mut Rng) -> Vec<Op> {
    let (one, other) = (path(rng), path(rng));
    let link = Op::link(one.clone(), other.clone());
    let mut ops = vec![link];
    ops.extend(maybe_fsync(rng, &[&one, &other, &parent(&other)]));
    if rng.one_in(2) {
        ops.push(Op::unlink(if rng.one_in(2) { &one } else { &other }));
        ops.extend(maybe_fsync(rng, &[&one, &other, &parent(&one), &parent(&other)]));
    }
    ops
}

fn directories(rng: &mut Rng) -> Vec<Op> {
    let top = dir_path(rng);
    let (new, inner) = (format!("{top}/n{}", rng.below(3)), rng.below(3));
    let file = format!("{new}/m{inner}/f");
    let mkdir = |path: &str| Op::Mkdir { path: path.into() };
    let mut ops = vec![mkdir(&top), mkdir(&new), mkdir(&parent(&file)), write(rng, &file)];
    ops.extend(maybe_fsync(rng, &[&file, &parent(&file), &new]));
    if rng.one_in(3) {
        let to = dir_path(rng);
        ops.push(Op::rename(&new, format!("{to}/n{}", rng.below(3))));
        ops.extend(maybe_fsync(rng, &[&to, &top]));
    }
    ops
}

fn made_again(rng: &mut Rng) -> Vec<Op> {
    let file = path(rng);
    if rng.one_in(2) {
        let mut ops = vec![Op::unlink(&file), write(rng, &file)];
        ops.extend(maybe_fsync(rng, &[&file, &file, &parent(&file)]));
        return ops;
    }
    let dir = format!("{}/again", dir_path(rng));
    let inner = format!("{dir}/f");
    let mut ops = vec![
        Op::unlink(&inner),
        Op::rmdir(dir.clone()),
        Op::mkdir(dir.clone()),
        write(rng, &inner),
    ];
    ops.extend(maybe_fsync(rng, &[&inner, &dir, &parent(&dir)]));
    ops
}

fn attributes(rng: &mut Rng) -> Vec<Op> {
    let file = path(rng);
    let name = format!("user.{}", rng.below(4));
    let set = Op::set_xattr(
        file.clone(),
        name.clone(),
        Data::Fill {
            len: rng.below(300) as usize,
            fill: rng.next_u64(),
        },
    );
    let mut ops = vec![set];
    ops.extend(maybe_fsync(rng, &[&file]));
    if rng.one_in(2) {
        ops.push(Op::remove_xattr(file.clone(), name));
        ops.extend(maybe_fsync(rng, &[&file, &file]));
    }
    ops
}

fn exchange(rng: &mut Rng) -> Vec<Op> {
    let (from, to) = (path(rng), path(rng));
    let mut ops = vec![Op::exchange(from.clone(), to.clone())];
    ops.extend(maybe_fsync(rng, &[&from, &to, &parent(&to)]));
    ops
}

/// Clones and exchanges of what was written just now, and an fsync of one side.
fn remaps(rng: &mut Rng) -> Vec<Op> {
    let (one, other) = (path(rng), path(rng));
    let mut ops = vec![write(rng, &one)];
    if rng.one_in(2) {
        ops.extend([write(rng, &other), Op::fsync(&other)]);
    }
    if rng.one_in(3) {
        ops.push(Op::fsync(&one));
    }
    let mut op = if rng.one_in(2) {
        draw::clone_range(rng)
    } else {
        draw::swap(rng)
    };
    match &mut op {
        Op::CloneRange { from, to, .. } => (*from, *to) = (one.clone(), other.clone()),
        Op::Swap { a, b, .. } => (*a, *b) = (one.clone(), other.clone()),
        _ => {}
    }
    ops.push(op);
    ops.extend(maybe_fsync(rng, &[&one, &other, &other]));
    if rng.one_in(3) {
        ops.push(write(rng, &one));
        ops.extend(maybe_fsync(rng, &[&one, &other]));
    }
    ops
}

/// Two files of the same content, most of it, which share it then; an fsync of one side, and what
/// comes later.
fn the_same(rng: &mut Rng) -> Vec<Op> {
    let (one, other) = (path(rng), path(rng));
    let (len, fill) = (2 * BLOCK_BYTES + len(rng), rng.next_u64());
    let copy = |path: &str| Op::write(path, 0, len as usize, fill);
    let mut ops = vec![copy(&one)];
    ops.extend(maybe_fsync(rng, &[&one]));
    ops.push(copy(&other));
    // What differs is not shared, and the rest of the file is.
    let differs = rng.below(len / BLOCK_BYTES) * BLOCK_BYTES;
    let is_whole = !rng.one_in(4);
    if !is_whole {
        ops.push(Op::write(
            other.clone(),
            differs,
            1 + rng.below(BLOCK_BYTES) as usize,
            rng.next_u64(),
        ));
    }
    ops.extend(match rng.below(4) {
        0 => Some(Op::Sync),
        _ => maybe_fsync(rng, &[&one, &other, &other]),
    });
    let (from, len) = match (is_whole, differs) {
        (false, 1..) => (0, differs),
        _ if rng.one_in(2) => (0, len),
        _ => (differs, len - differs),
    };
    let (src, dst) = if rng.one_in(2) { (&one, &other) } else { (&other, &one) };
    ops.push(Op::dedupe(src.clone(), from, dst.clone(), from, len));
    ops.extend(maybe_fsync(rng, &[&one, &other, &other]));
    ops.extend(match rng.below(4) {
        0 => Some(write(rng, &one)),
        1 => Some(Op::unlink(&one)),
        2 => Some(draw::defrag(rng, other.clone())),
        _ => None,
    });
    ops.extend(maybe_fsync(rng, &[&one, &other]));
    ops
}

/// A file that was written bit by bit, perhaps cloned, and put in order then; an fsync, and what
/// comes later.
fn fragments(rng: &mut Rng) -> Vec<Op> {
    let (file, copy) = (path(rng), path(rng));
    let step = BLOCK_BYTES * (1 + rng.below(5));
    let mut ops = Vec::new();
    for n in 0..2 + rng.below(4) {
        ops.push(Op::write(
            file.clone(),
            n * step,
            step as usize + rng.below(BLOCK_BYTES) as usize,
            rng.next_u64(),
        ));
        // Else they go to disk together.
        ops.push(if rng.one_in(2) {
            Op::fdatasync(&file)
        } else {
            Op::fsync(&file)
        });
    }
    if rng.one_in(3) {
        ops.push(clone_all(&file, &copy));
    }
    if rng.one_in(3) {
        ops.push(Op::Sync);
    }
    for _ in 0..1 + rng.below(2) {
        ops.push(draw::defrag(rng, file.clone()));
        ops.extend(maybe_fsync(rng, &[&file, &file, &copy]));
    }
    if rng.one_in(2) {
        ops.push(write(rng, &file));
        ops.extend(maybe_fsync(rng, &[&file, &copy]));
    }
    ops
}

/// What a database does: groups, and ordinary writes between them.
fn groups(rng: &mut Rng) -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..1 + rng.below(3) {
        ops.push(draw::group(rng));
        if rng.one_in(3) {
            let file = path(rng);
            ops.push(write(rng, &file));
            ops.extend(maybe_fsync(rng, &[&file]));
        }
    }
    ops
}

/// A file without copy on write: written over, cloned away from and written over again.
fn in_place(rng: &mut Rng) -> Vec<Op> {
    let (file, copy) = (path(rng), path(rng));
    let flags = |path: &str| Op::Flags {
        path: path.into(),
        flags: cowshed_model::tree::NOCOW,
    };
    let make = |path: &str| Op::write(path, 0, 0, 0);
    let mut ops = vec![
        Op::unlink(&file),
        make(&file),
        flags(&file),
        write(rng, &file),
        Op::fsync(&file),
    ];
    for _ in 0..1 + rng.below(3) {
        ops.push(write(rng, &file));
        // Of data alone that is overwritten it is a barrier and no more.
        ops.push(if rng.one_in(2) {
            Op::fdatasync(&file)
        } else {
            Op::fsync(&file)
        });
    }
    if rng.one_in(2) {
        ops.extend([Op::unlink(&copy), make(&copy), flags(&copy)]);
        ops.push(clone_all(&file, &copy));
        ops.push(write(rng, &file));
        ops.extend(maybe_fsync(rng, &[&file, &copy]));
    }
    ops
}
