//! Tides: a small volume is filled with data until there is no room, most of it is deleted; it is
//! filled with names until there is no room, all of them are deleted; and again.
//!
//! What fails for want of space has changed nothing, what is deleted makes room, and everything is
//! compared with the model at each turn. How far each tide came is told.

use std::fmt;

use anyhow::{Context as _, Result, ensure};
use cowshed_model::{At, BLOCK_BYTES, Body, Model, Name, Node, Op, Outcome, Place, Rng};
use cowshed_vfs::{Error, FileSystem as _, SetXattrFlags};

use crate::compare::{self, Depth, Numbers};
use crate::judge;
use crate::run::{same_answer, shortened};
use crate::subject::{Setup, Subject};

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    /// Each is one tide of data and one of names.
    pub turns: usize,
    pub setup: Setup,
    /// `btrfs check` and the kernel at the end.
    pub btrfs_check: bool,
}

/// How far the tides of a turn came before they found no room: what was there then, with what
/// earlier ones had left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub data_bytes: u64,
    pub names: usize,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB of data, {} names", self.data_bytes >> 20, self.names)
    }
}

const WRITE_BYTES_MAX: u64 = 2 << 20;
/// One of so many files with data stays.
const KEPT_ONE_IN: u64 = 10;
/// Names in one directory.
const DIR_NAMES: u16 = 1000;
const XATTR: u8 = 0;
/// No tide takes more operations: the volume is small.
const OPERATIONS_MAX: usize = 200_000;

/// Runs; gives the reach of each turn.
pub fn run(config: &Config) -> Result<Vec<Reach>> {
    let subject = Subject::new(&config.setup)?;
    let mut tides = Tides {
        model: subject.model()?,
        subject,
        numbers: Numbers::new(),
        dice: Rng::new(config.seed),
        fresh: 0,
    };
    let mut reached = Vec::new();
    for turn in 0..config.turns {
        let data_bytes = tides.data().with_context(|| format!("turn {turn}, data"))?;
        let names = tides.names().with_context(|| format!("turn {turn}, names"))?;
        reached.push(Reach { data_bytes, names });
    }
    tides.step(&Op::Remount)?;
    tides.look().context("at the end")?;
    if config.btrfs_check {
        tides.subject.fs.destroy();
        judge::btrfs_check(&tides.subject.devices)?;
    }
    Ok(reached)
}

struct Tides {
    subject: Subject,
    model: Model,
    numbers: Numbers,
    dice: Rng,
    /// Names that were given out.
    fresh: u16,
}

fn dir(n: u16) -> At {
    At::Path(vec![Name(Name::FIRST_WIDE + n)])
}

fn inner(n: u16, name: u16) -> Place {
    Place {
        dir: dir(n),
        name: Name(Name::FIRST_WIDE + name),
    }
}

fn at(place: &Place) -> At {
    match &place.dir {
        At::Path(path) => At::Path([&path[..], &[place.name]].concat()),
        slot => slot.clone(),
    }
}

fn blocks(node: &Node) -> usize {
    match &node.body {
        Body::File(content) => content.block_offsets().count(),
        Body::Dir { .. } | Body::Symlink(_) | Body::Special => 0,
    }
}

fn create(place: &Place) -> Op {
    Op::create(place.clone(), 0o644, true, false)
}

impl Tides {
    /// Does the operation on both sides. `false`: there is no room, and nothing has changed.
    fn step(&mut self, op: &Op) -> Result<bool> {
        let now = self.subject.clock.advance();
        let found: Outcome = self.subject.apply(op)?;
        if found == Err(Error::NoSpace) {
            return Ok(false);
        }
        let op = shortened(op, &found);
        let expected = self.model.apply(&op, now);
        same_answer(&op, &found, &expected, &self.model).with_context(|| format!("{op:?}"))?;
        Ok(true)
    }

    /// As [`Tides::step`]; where there is no room, once more after a sync, which may make some.
    fn push(&mut self, op: &Op) -> Result<bool> {
        if self.step(op)? {
            return Ok(true);
        }
        self.must(&Op::Sync)?;
        self.step(op)
    }

    /// What a full volume must be able to do.
    fn must(&mut self, op: &Op) -> Result<()> {
        let done = self.step(op).with_context(|| format!("{op:?}"))?;
        ensure!(done, "{op:?}: no space");
        Ok(())
    }

    fn new_dir(&mut self) -> Result<Option<u16>> {
        let n = self.fresh;
        let place = Place {
            dir: At::Path(vec![]),
            name: Name(Name::FIRST_WIDE + n),
        };
        if !self.push(&Op::mkdir(place, 0o755))? {
            return Ok(None);
        }
        self.fresh = (n + 1) % Name::WIDE;
        Ok(Some(n))
    }

    /// Files until there is no room for one more byte; then most of them go.
    fn data(&mut self) -> Result<u64> {
        let Some(dir) = self.new_dir()? else { return Ok(0) };
        let mut files = Vec::new();
        'fill: for n in 0..DIR_NAMES {
            let place = inner(dir, n);
            if !self.push(&create(&place))? {
                break;
            }
            files.push(place.clone());
            for piece in 0..4 {
                let len = 1 + self.dice.below(WRITE_BYTES_MAX);
                let write = Op::write(
                    at(&place),
                    piece * WRITE_BYTES_MAX,
                    len as u32,
                    self.dice.next_u64() | 1,
                    false,
                );
                if !self.push(&write)? {
                    break 'fill;
                }
            }
        }
        let blocks: usize = self.model.ids().map(|id| blocks(self.model.node(id))).sum();
        let bytes = blocks as u64 * BLOCK_BYTES;
        self.ebb(&files, |dice| !dice.one_in(KEPT_ONE_IN))?;
        Ok(bytes)
    }

    /// Names with something to hold in trees until there is no room; then all of them go.
    fn names(&mut self) -> Result<usize> {
        let mut names = Vec::new();
        'fill: while names.len() < OPERATIONS_MAX {
            let Some(dir) = self.new_dir()? else { break };
            for n in 0..DIR_NAMES {
                let place = inner(dir, n);
                let symlink = self.dice.one_in(4);
                let first = match symlink {
                    true => Op::symlink(place.clone(), 3000, self.dice.next_u64()),
                    false => create(&place),
                };
                if !self.push(&first)? {
                    break 'fill;
                }
                names.push(place.clone());
                let xattr = Op::set_xattr(
                    at(&place),
                    XATTR,
                    self.dice.below(3000) as u32,
                    self.dice.next_u64(),
                    SetXattrFlags::empty(),
                );
                if !symlink && !self.push(&xattr)? {
                    break 'fill;
                }
            }
        }
        let count = self.model.node_count();
        // Those that stayed would lie all over the block groups that the names have taken from the
        // data.
        self.ebb(&names, |_| true)?;
        Ok(count)
    }

    /// The full volume is looked at; then most of what was made goes, and what is left is looked
    /// at.
    fn ebb(&mut self, made: &[Place], goes: impl Fn(&mut Rng) -> bool) -> Result<()> {
        self.look().context("when it was full")?;
        for place in made {
            if goes(&mut self.dice) {
                self.must(&Op::unlink(place.clone()))?;
            }
        }
        self.look().context("when most of it was deleted")
    }

    fn look(&mut self) -> Result<()> {
        self.must(&Op::Sync)?;
        compare::everything(&self.subject, &self.model, &mut self.numbers, Depth::All)?;
        judge::own_check(&self.subject.snapshot())
    }
}
