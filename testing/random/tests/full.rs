//! A full disk, at each operation: it fails for want of space and has changed nothing, or succeeds
//! and can be synced. Either way nothing is lost, and the volume is in order.
//!
//! A volume with some files is filled, with data, or with metadata too, and frozen. For each
//! operation and each number of blocks that are given back (or of small files that are deleted) a
//! copy is mounted, the operation done, and everything compared with the model: at once, and after
//! a sync and a remount.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cowshed_device::MemDevice;
use cowshed_model::{At, Model, Name, Op, PROPERTY_VALUES, Place, Touch};
use cowshed_random::compare::{self, Depth, Numbers};
use cowshed_random::judge;
use cowshed_random::subject::{Setup, Subject};
use cowshed_vfs::{Error, FallocateFlags as F, FileSystem as _, NodeId, RenameFlags, SetXattrFlags};

const BLOCK: u64 = 4096;
/// Extents of the fragmented file: more than any operation takes in one step.
const FRAGMENTS: u64 = 300;

fn place(n: u16) -> Place {
    Place {
        dir: At::Path(vec![]),
        name: Name(n),
    }
}

fn at(n: u16) -> At {
    At::Path(vec![Name(n)])
}

/// Of so many results btrfs-progs and the kernel judge one, too: a prime, so that all operations
/// and rooms have their turn.
const RESULTS_PER_JUDGEMENT: usize = 19;
/// Blocks of the file that is there in pieces of one each.
const PIECES_BLOCKS: u64 = 40;

/// Names of what is there before the volume is filled.
const BIG: u16 = 0;
const FRAGMENTED: u16 = 1;
const SMALL: u16 = 2;
const ODD: u16 = 3;
const IN_PLACE: u16 = 4;
const PREALLOCATED: u16 = 5;
const DIR: u16 = 6;
const FILLER: u16 = 7;
const DOOMED: u16 = 8;
const NEW: u16 = 9;
const PIECES: u16 = 10;
/// A nodatacow file, and one that was cloned from it.
const SHARED: u16 = 11;
const SHARED_TOO: u16 = 12;
/// A file that is preallocated, and one that was cloned from it.
const PROMISED: u16 = 13;
const PROMISED_TOO: u16 = 14;
const FIRST_CRUMB: u16 = Name::FIRST_WIDE;

fn create(n: u16) -> Op {
    Op::create(place(n), 0o4755, true, false)
}

fn write(n: u16, offset: u64, len: u64) -> Op {
    Op::write(at(n), offset, len as u32, 2 + 7 * u64::from(n) + offset, false)
}

fn stage(n: u16, offset: u64, len: u64) -> Op {
    Op::stage(0, at(n), offset, len as u32, 11 + offset)
}

fn allocate(n: u16, mode: F, offset: u64, len: u64) -> Op {
    Op::fallocate(at(n), mode, offset, len)
}

fn truncate(n: u16, size: u64) -> Op {
    Op::truncate(at(n), size)
}

fn clone(src: u16, src_offset: u64, dst: u16, dst_offset: u64, len: u64) -> Op {
    Op::clone_range(at(src), src_offset, at(dst), dst_offset, len)
}

fn exchange(a: u16, b: u16, len: u64, to_eof: bool) -> Op {
    Op::exchange(at(a), 0, at(b), 0, len, to_eof)
}

fn defrag(n: u16, target: u64, compress: Option<u8>) -> Op {
    Op::defrag(at(n), 0, u64::MAX, target, compress)
}

/// What is done on the full volume, each by itself.
fn operations() -> Vec<Vec<Op>> {
    const PUNCH: F = F::PUNCH_HOLE.union(F::KEEP_SIZE);
    let whole = FRAGMENTS * 2 * BLOCK;
    let copy = |src, src_offset, dst, dst_offset, len| Op::Copy {
        src: at(src),
        src_offset,
        dst: at(dst),
        dst_offset,
        len,
    };
    let commit = Op::end_group(0, true);
    let xattr = |len| Op::SetXattr {
        at: at(BIG),
        name: 0,
        len,
        fill: 5,
        flags: SetXattrFlags::empty(),
    };
    let dedupe = Op::dedupe(at(SMALL), 0, at(SMALL), 0, 0);
    let rename = |from, to, flags| Op::Rename {
        from: place(from),
        to: place(to),
        flags,
    };
    vec![
        vec![write(BIG, 0, 1)],
        vec![write(BIG, 5000, 3 * BLOCK)],
        vec![write(ODD, 10_000, 10)],
        vec![write(SMALL, 0, 50)],
        vec![write(SMALL, 0, 3000)],
        vec![write(IN_PLACE, 100, 40_000)],
        vec![write(PREALLOCATED, 3 * BLOCK, 2 * BLOCK)],
        vec![write(PREALLOCATED, 100, 30)],
        // Shared: none of it may go where it lies.
        vec![write(SHARED, 100, 40_000)],
        vec![write(SHARED_TOO, 8 * BLOCK, 2 * BLOCK)],
        vec![write(PROMISED, 3 * BLOCK, 2 * BLOCK)],
        vec![write(PROMISED_TOO, 100, 30), write(PROMISED, 0, BLOCK)],
        vec![truncate(BIG, 5)],
        vec![truncate(BIG, BLOCK)],
        vec![truncate(FRAGMENTED, 0)],
        vec![truncate(FRAGMENTED, 100)],
        vec![truncate(SMALL, 7)],
        vec![truncate(ODD, 1 << 20)],
        // What was cut off does not come back, whatever becomes of the block of the end.
        vec![truncate(BIG, 5), truncate(BIG, 3 * BLOCK)],
        vec![truncate(BIG, BLOCK + 5), write(BIG, BLOCK + 100, 50)],
        vec![truncate(ODD, 9000), clone(FRAGMENTED, 0, ODD, 8 * BLOCK, 20 * BLOCK)],
        vec![truncate(ODD, 9000), allocate(ODD, F::empty(), 5000, 5 * BLOCK)],
        vec![truncate(ODD, 9000), Op::Sync, exchange(ODD, BIG, 0, true)],
        vec![truncate(SMALL, 7), truncate(SMALL, 150)],
        vec![allocate(FRAGMENTED, PUNCH, 0, whole)],
        vec![allocate(BIG, PUNCH, 100, 3 * BLOCK)],
        vec![allocate(BIG, PUNCH, 100, 30)],
        vec![allocate(FRAGMENTED, F::ZERO_RANGE, 0, whole)],
        vec![allocate(FRAGMENTED, F::ZERO_RANGE, 100, whole)],
        vec![allocate(BIG, F::ZERO_RANGE, 100, 2 * BLOCK)],
        vec![allocate(ODD, F::ZERO_RANGE | F::KEEP_SIZE, BLOCK, 4 * BLOCK)],
        vec![allocate(ODD, F::ZERO_RANGE, 2 * BLOCK, 4 * BLOCK)],
        vec![allocate(FRAGMENTED, F::empty(), 0, whole + 3 * BLOCK)],
        vec![allocate(FRAGMENTED, F::KEEP_SIZE, 0, 7 * BLOCK)],
        vec![clone(FRAGMENTED, 0, BIG, 0, 0)],
        vec![clone(ODD, 0, BIG, 256 * BLOCK, 0)],
        vec![clone(SMALL, 0, ODD, 8 * BLOCK, 0)],
        vec![clone(BIG, 0, FRAGMENTED, BLOCK, 20 * BLOCK)],
        vec![clone(BIG, 0, FRAGMENTED, 800 * BLOCK, 20 * BLOCK)],
        vec![dedupe],
        vec![defrag(FRAGMENTED, 1 << 20, None)],
        vec![defrag(PIECES, 1 << 20, None)],
        vec![defrag(PIECES, 16 << 10, Some(0))],
        vec![defrag(BIG, 1 << 20, Some(3))],
        vec![Op::dedupe(at(FRAGMENTED), BLOCK, at(FRAGMENTED), 3 * BLOCK, BLOCK)],
        vec![exchange(BIG, FRAGMENTED, 200 * BLOCK, false)],
        vec![exchange(FRAGMENTED, BIG, 0, true)],
        vec![exchange(SMALL, ODD, 0, true)],
        vec![copy(BIG, 100, FRAGMENTED, 100, 50_000)],
        vec![copy(BIG, 100, ODD, 200, 50_000)],
        vec![stage(BIG, 100, 9000), commit.clone()],
        vec![
            stage(BIG, 0, 5 * BLOCK),
            stage(FRAGMENTED, 300, 9000),
            stage(SMALL, 10, 10),
            commit.clone(),
        ],
        vec![stage(ODD, 200_000, 100), commit],
        vec![stage(BIG, 0, 70_000), Op::end_group(0, false)],
        vec![create(NEW)],
        vec![create(NEW), write(NEW, 0, 100)],
        vec![Op::mkdir(place(NEW), 0o755)],
        vec![Op::symlink(place(NEW), 1000, 3)],
        vec![Op::link(at(BIG), place(NEW))],
        vec![rename(BIG, NEW, RenameFlags::empty())],
        vec![rename(BIG, DOOMED, RenameFlags::empty())],
        vec![rename(BIG, DOOMED, RenameFlags::EXCHANGE)],
        vec![rename(BIG, NEW, RenameFlags::WHITEOUT)],
        vec![xattr(10)],
        vec![xattr(3000)],
        vec![Op::chmod(at(BIG), 0o600)],
        vec![Op::utimes(at(BIG), Touch::Now, Touch::Keep)],
        vec![Op::flags(at(DIR), Op::NOCOW)],
        vec![Op::property(at(DIR), Some(2 % PROPERTY_VALUES.len() as u8))],
    ]
}

/// Operations that give space back: there must always be enough for them.
fn only_frees() -> Vec<Vec<Op>> {
    const PUNCH: F = F::PUNCH_HOLE.union(F::KEEP_SIZE);
    vec![
        vec![Op::unlink(place(DOOMED))],
        vec![Op::unlink(place(FRAGMENTED))],
        vec![Op::rmdir(place(DIR))],
        vec![truncate(FRAGMENTED, 0)],
        vec![truncate(FRAGMENTED, 100)],
        vec![truncate(BIG, BLOCK)],
        vec![truncate(BIG, 5)],
        vec![truncate(ODD, 9000)],
        vec![truncate(SMALL, 7)],
        vec![truncate(IN_PLACE, 50_001)],
        vec![truncate(PROMISED, 3 * BLOCK + 1)],
        vec![allocate(FRAGMENTED, PUNCH, 0, FRAGMENTS * BLOCK)],
        vec![allocate(BIG, PUNCH, BLOCK, 20 * BLOCK)],
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Data,
    /// Data first, so that no chunk is left for metadata.
    Both,
}

/// A filled volume, not mounted, and what is on it.
struct Filled {
    setup: Setup,
    devices: Vec<Arc<MemDevice>>,
    model: Model,
    /// What the filler has.
    filler_bytes: u64,
    crumbs: u16,
}

struct Pair {
    subject: Subject,
    model: Model,
}

impl Pair {
    /// Applies on both sides; `NoSpace` changes nothing.
    fn apply(&mut self, op: &Op) -> Result<bool> {
        let now = self.subject.clock.advance();
        let found = self.subject.apply(op)?;
        if found == Err(Error::NoSpace) {
            if let Op::EndGroup { group, .. } = op {
                self.model.drop_group(*group);
            }
            return Ok(false);
        }
        let op = cowshed_random::run::shortened(op, &found);
        let expected = self.model.apply(&op, now);
        ensure!(found == expected, "{op:?} answered {found:?}, expected {expected:?}");
        Ok(true)
    }

    fn verify(&self) -> Result<()> {
        compare::everything(&self.subject, &self.model, &mut Numbers::new(), Depth::All)
    }
}

fn fresh(setup: &Setup) -> Result<Pair> {
    let subject = Subject::new(setup)?;
    let root = subject.attr(NodeId::ROOT)?;
    let mut node = Model::empty_root(root.perm, root.mtime);
    (node.atime, node.ctime, node.btime) = (root.atime, root.ctime, root.btime);
    let mut model = Model::new(setup.node_bytes, node);
    model.mount = setup.rules();
    Ok(Pair { subject, model })
}

fn fill(setup: &Setup, how: Fill) -> Result<Filled> {
    let mut pair = fresh(setup)?;
    for n in [
        BIG,
        FRAGMENTED,
        SMALL,
        ODD,
        IN_PLACE,
        PREALLOCATED,
        FILLER,
        DOOMED,
        PIECES,
        SHARED,
        SHARED_TOO,
        PROMISED,
        PROMISED_TOO,
    ] {
        pair.apply(&create(n))?;
    }
    let in_place = |n| Op::Flags {
        at: at(n),
        flags: Op::NOCOW,
    };
    let mkdir = Op::mkdir(place(DIR), 0o755);
    for op in [
        in_place(IN_PLACE),
        in_place(SHARED),
        in_place(SHARED_TOO),
        mkdir,
        write(BIG, 0, 1 << 20),
        write(SMALL, 0, 200),
        write(ODD, 0, 10_100),
        write(IN_PLACE, 0, 100_000),
        allocate(PREALLOCATED, F::empty(), 0, 20 * BLOCK),
        write(DOOMED, 0, 300_000),
        write(SHARED, 0, 100_000),
        clone(SHARED, 0, SHARED_TOO, 0, 0),
        allocate(PROMISED, F::empty(), 0, 20 * BLOCK),
        clone(PROMISED, 0, PROMISED_TOO, 0, 0),
    ] {
        ensure!(pair.apply(&op)?, "{op:?} on an empty volume");
    }
    for n in 0..FRAGMENTS {
        pair.apply(&write(FRAGMENTED, n * 2 * BLOCK, BLOCK))?;
    }
    // Neighbours that are none on disk: work for a defragmentation.
    for first in [1, 0] {
        for n in (first..PIECES_BLOCKS).step_by(2) {
            pair.apply(&write(PIECES, n * BLOCK, BLOCK))?;
        }
        pair.apply(&Op::Sync)?;
    }
    pair.apply(&Op::Sync)?;
    let mut filler_bytes = 0;
    let mut crumbs = 0;
    for step in [16 << 20, 1 << 20, 64 << 10, BLOCK] {
        while pair.apply(&allocate(FILLER, F::empty(), filler_bytes, step))? {
            filler_bytes += step;
        }
    }
    if how == Fill::Both {
        // With xattrs they are larger than their names.
        while crumbs < Name::WIDE {
            let crumb = FIRST_CRUMB + crumbs;
            let fat = Op::set_xattr(at(crumb), 0, 3500, 1, SetXattrFlags::empty());
            if !pair.apply(&create(crumb))? {
                break;
            }
            crumbs += 1;
            if !pair.apply(&fat)? {
                break;
            }
        }
    }
    ensure!(pair.apply(&Op::Sync)?, "the last sync has its space reserved");
    pair.verify().context("after it was filled")?;
    pair.subject.fs.destroy();
    judge::own_check(&pair.subject.devices)?;
    judge::btrfs_check(&pair.subject.devices)?;
    Ok(Filled {
        setup: setup.clone(),
        devices: pair.subject.snapshot(),
        model: pair.model,
        filler_bytes,
        crumbs,
    })
}

impl Filled {
    /// Mounts a copy of which so many blocks are free, or so many small files gone.
    fn with_room(&self, blocks: u64) -> Result<Pair> {
        let devices = self.devices.iter().map(|d| Arc::new(d.snapshot())).collect();
        let subject = Subject::on(devices, &self.setup)?;
        let mut pair = Pair {
            subject,
            model: self.model.clone(),
        };
        // Times go on from where they stopped.
        while pair.subject.clock.advance() < self.model.node(Model::ROOT).mtime {}
        let given_back = self.filler_bytes.min(blocks * BLOCK);
        if given_back > 0 {
            pair.apply(&truncate(FILLER, self.filler_bytes - given_back))?;
        }
        for n in 0..self.crumbs.min(blocks as u16) {
            pair.apply(&Op::unlink(place(FIRST_CRUMB + n)))?;
        }
        // What is freed in one transaction can be used after it.
        for _ in 0..2 {
            ensure!(pair.apply(&Op::Sync)?, "a sync on a full volume");
        }
        Ok(pair)
    }

    /// `by_others`: btrfs-progs and the kernel judge the end, too.
    fn try_one(&self, ops: &[Op], blocks: u64, must_succeed: bool, by_others: bool) -> Result<bool> {
        let mut pair = self.with_room(blocks)?;
        let mut all = true;
        for op in ops {
            let done = pair.apply(op)?;
            ensure!(done || !must_succeed, "{op:?} must have its space");
            all &= done;
        }
        pair.verify().context("at once")?;
        if self.setup.tree_log {
            // Into a log, or into a commit in its place: there is space for one of them.
            for at in ops.iter().flat_map(Op::touched) {
                if pair.model.resolve(&at).is_ok() {
                    ensure!(pair.apply(&Op::fsync(at.clone()))?, "an fsync of {at:?}");
                }
            }
            pair.verify().context("after an fsync")?;
        }
        ensure!(pair.apply(&Op::Sync)?, "what was accepted finds no space");
        pair.verify().context("after a sync")?;
        pair.apply(&Op::Remount)?;
        pair.verify().context("after a remount")?;
        pair.subject.fs.destroy();
        judge::own_check(&pair.subject.devices)?;
        if by_others {
            judge::btrfs_check(&pair.subject.devices)?;
        }
        Ok(all)
    }
}

fn enumerate(setup: &Setup, how: Fill, rooms: &[u64]) {
    let filled = fill(setup, how).unwrap_or_else(|e| panic!("{how:?}: {e:#}"));
    let mut counts = [0, 0];
    let mut failures = Vec::new();
    let mut number = 0;
    let mut judge = |ops: &[Op], must_succeed| {
        for &blocks in rooms {
            number += 1;
            let by_others = number % RESULTS_PER_JUDGEMENT == 0;
            match filled.try_one(ops, blocks, must_succeed, by_others) {
                Ok(all) => counts[usize::from(all)] += 1,
                Err(error) => failures.push(format!("{how:?}, {blocks} blocks free, {ops:?}: {error:#}")),
            }
        }
    };
    operations().iter().for_each(|ops| judge(ops, false));
    only_frees().iter().for_each(|ops| judge(ops, true));
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(counts[0] > 0, "nothing was ever short of space: {counts:?}");
}

fn small() -> Setup {
    Setup {
        device_bytes: 128 << 20,
        ..Setup::default()
    }
}

#[test]
fn no_data_space() {
    enumerate(&small(), Fill::Data, &[0, 1]);
}

#[test]
fn no_space_at_all() {
    enumerate(&small(), Fill::Both, &[0, 5]);
}

#[test]
fn no_data_space_and_logs() {
    enumerate(&logs(), Fill::Data, &[1]);
}

#[test]
fn no_data_space_for_what_is_compressed() {
    for how in COMPRESSIONS {
        enumerate(&compressed(how), Fill::Data, &[2]);
    }
}

const COMPRESSIONS: [&str; 3] = ["lzo", "zlib", "zstd:1"];

fn compressed(how: &str) -> Setup {
    Setup {
        compress: Some(how.parse().unwrap()),
        ..small()
    }
}

/// Everything is written in place where it can be, and each operation is synced by itself.
fn logs() -> Setup {
    Setup {
        tree_log: true,
        nodatacow: true,
        ..small()
    }
}

#[test]
#[ignore = "each operation at each number of free blocks: most of an hour"]
fn full_at_each_number_of_free_blocks() {
    let explicit = Setup {
        no_holes: false,
        ..small()
    };
    // Logs of files whose data has checksums.
    let logs_and_csums = Setup {
        nodatacow: false,
        ..logs()
    };
    let large = Setup {
        node_bytes: 16384,
        ..small()
    };
    let rooms: Vec<u64> = (0..12).chain((12..300).step_by(61)).collect();
    for how in [Fill::Data, Fill::Both] {
        let others = [small(), explicit.clone(), logs(), logs_and_csums.clone(), large.clone()];
        for setup in others.into_iter().chain(COMPRESSIONS.map(compressed)) {
            enumerate(&setup, how, &rooms);
        }
    }
}
