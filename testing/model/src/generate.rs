//! Draws operations from a seed.

use cowshed_vfs::{FallocateFlags, FileKind, RenameFlags, SetXattrFlags, Timestamp};

use crate::dice::pick;
use crate::op::{GROUPS_OF_HANDLES, chattr};
use crate::{
    At, BLOCK_BYTES, Body, COMPRESSIONS, GROUPS, Id, Model, Name, Op, PROPERTY, PROPERTY_VALUES, Place, Rng, SLOTS,
    SeekFrom, Touch,
};

/// What kind of run it is.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// No remounts.
    pub no_remount: bool,
    /// Much data in few files, for volumes that shall fill up.
    pub bulky: bool,
    /// All names lie below this one: threads that do not meet.
    pub below: Option<Name>,
    /// Draw commits and remounts at all.
    pub barriers: bool,
    /// Many fsyncs, and few commits that would make them vain.
    pub fsyncs: bool,
    /// Many atomic groups.
    pub groups: bool,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            no_remount: false,
            bulky: false,
            below: None,
            barriers: true,
            fsyncs: false,
            groups: false,
        }
    }
}

/// Offsets up to here are the ordinary ones.
const SMALL_BYTES: u64 = 256 << 10;
const LARGE_BYTES: u64 = 4 << 20;
/// All that a dedupe is asked for is compared, and there are files of a terabyte, of holes for the
/// most part.
const DEDUPE_BYTES_MAX: u64 = 20 << 20;
/// More are removed than made beyond this many.
const NODES: usize = 1200;
const DEPTH_MAX: usize = 4;

#[derive(Debug)]
pub struct Generator {
    dice: Rng,
    mix: Mix,
}

impl Generator {
    pub fn new(seed: u64, mix: Mix) -> Generator {
        Generator {
            dice: Rng::new(seed),
            mix,
        }
    }

    /// The next operation, for a file system as the model has it.
    pub fn draw(&mut self, model: &Model) -> Op {
        let at = self.dice.below(1000);
        if model.node_count() > NODES && self.dice.one_in(4) {
            return Op::unlink(self.place(model, false));
        }
        if self.mix.fsyncs && self.dice.one_in(16) {
            let at = if self.dice.one_in(3) {
                self.node(model)
            } else {
                self.file(model)
            };
            return Op::fsync(at);
        }
        if self.mix.groups && self.dice.one_in(6) {
            return self.group(model);
        }
        match at {
            0..=699 => self.draw_op(model, at),
            700..=969 => self.draw_data(model),
            970..=989 => Op::fsync(self.node(model)),
            _ if !self.mix.barriers => self.draw_data(model),
            990..=993 => Op::Commit,
            994..=995 => Op::Sync,
            996..=997 => Op::Cool,
            _ if self.mix.no_remount => Op::Sync,
            _ => Op::Remount,
        }
    }

    fn draw_op(&mut self, model: &Model, at: u64) -> Op {
        match at {
            0..=119 => self.create(model),
            120..=129 => self.mknod(model),
            130..=169 => Op::mkdir(self.free_place(model), self.perm()),
            170..=189 => Op::symlink(
                self.free_place(model),
                *pick(&mut self.dice, &[1, 5, 30, 100, 1000, 3800, 3949, 3950, 4095, 4096, 0]),
                self.dice.next_u64(),
            ),
            190..=239 => Op::link(self.file(model), self.free_place(model)),
            240..=329 => Op::unlink(self.place(model, false)),
            330..=359 => Op::rmdir(self.place(model, true)),
            360..=439 => self.rename(model),
            440..=454 => Op::tmpfile(self.slot(), self.dir(model), self.perm(), self.dice.one_in(3)),
            455..=484 => Op::open(self.slot(), self.node(model)),
            485..=504 => Op::close(self.slot()),
            505..=554 => self.set_xattr(model),
            555..=574 => Op::remove_xattr(self.node(model), self.xattr()),
            575..=599 => Op::chmod(self.node(model), self.perm()),
            600..=619 => Op::chown(self.node(model), self.owner(), self.owner()),
            620..=644 => Op::utimes(self.node(model), self.touch(), self.touch()),
            645..=664 => Op::flags(self.node(model), self.flags()),
            665..=676 => Op::property(
                self.node(model),
                (!self.dice.one_in(4)).then(|| self.dice.below(PROPERTY_VALUES.len() as u64) as u8),
            ),
            _ => Op::list(self.dir(model)),
        }
    }

    fn draw_data(&mut self, model: &Model) -> Op {
        let at = self.file(model);
        match self.dice.below(132) {
            100..=104 => self.clone(model, at),
            105..=107 => self.dedupe(model, at),
            108..=111 => self.exchange(model, at),
            112..=121 => self.stage(model, at),
            122..=123 => self.end_group(model),
            124..=126 => self.defrag(model, at),
            127..=129 => Op::map(at),
            130..=131 => self.group(model),
            0..=39 => Op::Write {
                offset: self.offset(model, &at),
                len: self.len() as u32,
                fill: if self.dice.one_in(20) { 0 } else { self.dice.next_u64() },
                append: self.dice.one_in(8),
                at,
            },
            40..=51 => {
                let size = self.offset(model, &at);
                Op::truncate(at, size)
            }
            52..=66 => self.fallocate(model, at),
            67..=81 => Op::Read {
                offset: self.offset(model, &at),
                len: self.len() as u32,
                at,
            },
            82..=86 => Op::Seek {
                offset: self.offset(model, &at),
                what: *pick(&mut self.dice, &[SeekFrom::Data, SeekFrom::Hole]),
                at,
            },
            _ => self.copy(model, at),
        }
    }

    fn create(&mut self, model: &Model) -> Op {
        let place = if self.dice.one_in(8) {
            self.place(model, false)
        } else {
            self.free_place(model)
        };
        Op::create(place, self.perm(), self.dice.one_in(2), self.dice.one_in(3))
    }

    fn mknod(&mut self, model: &Model) -> Op {
        use FileKind as K;
        let kind = *pick(
            &mut self.dice,
            &[K::Fifo, K::Socket, K::CharDevice, K::BlockDevice, K::Regular],
        );
        let is_device = matches!(kind, K::CharDevice | K::BlockDevice);
        let rdev = if is_device {
            cowshed_vfs::rdev(self.dice.below(4096) as u32, self.dice.below(1 << 20) as u32)
        } else {
            0
        };
        Op::mknod(self.free_place(model), kind, self.perm(), rdev)
    }

    fn rename(&mut self, model: &Model) -> Op {
        let want_dir = self.dice.one_in(4);
        let from = self.place(model, want_dir);
        let to = if self.dice.one_in(2) {
            self.place(model, want_dir)
        } else {
            self.free_place(model)
        };
        let flags = match self.dice.below(20) {
            0..=11 => RenameFlags::empty(),
            12..=13 => RenameFlags::NO_REPLACE,
            14..=16 => RenameFlags::EXCHANGE,
            17..=18 => RenameFlags::WHITEOUT,
            _ => RenameFlags::from_bits_truncate(self.dice.below(8) as u32),
        };
        Op::rename(from, to, flags)
    }

    fn fallocate(&mut self, model: &Model, at: At) -> Op {
        use FallocateFlags as F;
        let modes = [
            F::empty(),
            F::KEEP_SIZE,
            F::PUNCH_HOLE | F::KEEP_SIZE,
            F::PUNCH_HOLE | F::KEEP_SIZE,
            F::ZERO_RANGE,
            F::ZERO_RANGE | F::KEEP_SIZE,
        ];
        let mode = if self.dice.one_in(40) {
            F::PUNCH_HOLE
        } else {
            *pick(&mut self.dice, &modes)
        };
        Op::Fallocate {
            offset: self.offset(model, &at),
            len: self.len(),
            mode,
            at,
        }
    }

    fn copy(&mut self, model: &Model, src: At) -> Op {
        let dst = if self.dice.one_in(3) {
            src.clone()
        } else {
            self.file(model)
        };
        let (mut src_offset, mut dst_offset) = (self.offset(model, &src), self.offset(model, &dst));
        let mut len = self.len();
        if !self.dice.one_in(4) {
            // Where blocks can be shared.
            src_offset -= src_offset % BLOCK_BYTES;
            dst_offset -= dst_offset % BLOCK_BYTES;
            len = (len + BLOCK_BYTES) & !(BLOCK_BYTES - 1);
        }
        if self.dice.one_in(3) {
            (src_offset, len) = (0, LARGE_BYTES);
        }
        Op::copy(src, src_offset, dst, dst_offset, len)
    }

    /// Another file for a remap, or the same, and offsets in both: at blocks, mostly.
    fn other(&mut self, model: &Model, one: &At) -> (At, u64, u64) {
        let other = if self.dice.one_in(4) {
            one.clone()
        } else {
            self.file(model)
        };
        let (mut from, mut to) = (self.offset(model, one), self.offset(model, &other));
        if !self.dice.one_in(12) {
            from -= from % BLOCK_BYTES;
            to -= to % BLOCK_BYTES;
        }
        (other, from, to)
    }

    /// A length from an offset: to the end of the file, of whole blocks, or any.
    fn len_from(&mut self, model: &Model, at: &At, offset: u64) -> u64 {
        let len = self.len();
        match self.dice.below(12) {
            0 => len,
            1 => 0,
            2..=6 => match model.resolve(at) {
                Ok(id) => model.node(id).size_bytes().saturating_sub(offset),
                Err(_) => len,
            },
            _ => (len + BLOCK_BYTES) & !(BLOCK_BYTES - 1),
        }
    }

    fn clone(&mut self, model: &Model, src: At) -> Op {
        let (dst, src_offset, dst_offset) = self.other(model, &src);
        let len = self.len_from(model, &src, src_offset);
        Op::clone_range(src, src_offset, dst, dst_offset, len)
    }

    /// Mostly of what is the same: behind the same offset there may be what was cloned, and zeros
    /// are the same everywhere.
    fn dedupe(&mut self, model: &Model, src: At) -> Op {
        let (dst, src_offset, mut dst_offset) = self.other(model, &src);
        if self.dice.one_in(2) {
            dst_offset = src_offset;
        }
        let len = self.len_from(model, &src, src_offset).min(DEDUPE_BYTES_MAX);
        Op::dedupe(src, src_offset, dst, dst_offset, len)
    }

    /// Mostly of the whole file.
    fn defrag(&mut self, model: &Model, at: At) -> Op {
        let is_whole = !self.dice.one_in(3);
        Op::Defrag {
            offset: if is_whole { 0 } else { self.offset(model, &at) },
            len: if is_whole { u64::MAX } else { self.len() },
            target: *pick(&mut self.dice, &[0, 32 << 10, 256 << 10, 1 << 30]),
            compress: self
                .dice
                .one_in(2)
                .then(|| self.dice.below(COMPRESSIONS.len() as u64) as u8),
            at,
        }
    }

    fn exchange(&mut self, model: &Model, a: At) -> Op {
        let (b, mut a_offset, mut b_offset) = self.other(model, &a);
        if self.dice.one_in(3) {
            (a_offset, b_offset) = (0, 0);
        }
        let len = self.len_from(model, &a, a_offset);
        Op::exchange(a, a_offset, b, b_offset, len, self.dice.one_in(3))
    }

    /// Into any group. Mostly it is open: they stay so for long.
    fn stage(&mut self, model: &Model, at: At) -> Op {
        Op::Stage {
            group: self.dice.below(u64::from(GROUPS)) as u8,
            offset: self.offset(model, &at),
            len: self.len() as u32,
            fill: self.dice.next_u64(),
            at,
        }
    }

    /// One that is open, mostly.
    fn end_group(&mut self, model: &Model) -> Op {
        let open: Vec<u8> = model.open_groups().collect();
        Op::end_group(
            match open.is_empty() || self.dice.one_in(8) {
                true => self.dice.below(u64::from(GROUPS)) as u8,
                false => *pick(&mut self.dice, &open),
            },
            !self.dice.one_in(3),
        )
    }

    /// What has to do with groups: a write into one, an end, a look through its handle.
    fn group(&mut self, model: &Model) -> Op {
        match self.dice.below(8) {
            0..=4 => {
                let at = self.file(model);
                self.stage(model, at)
            }
            5..=6 => self.end_group(model),
            _ => Op::read_staged(
                GROUPS - 1 - self.dice.below(u64::from(GROUPS_OF_HANDLES)) as u8,
                self.dice.below(SMALL_BYTES),
                self.len() as u32,
            ),
        }
    }

    fn set_xattr(&mut self, model: &Model) -> Op {
        let limit = model.xattr_bytes_max as u64;
        let len = match self.dice.below(10) {
            0 => 0,
            1 => limit - self.dice.below(20),
            2 => self.dice.below(limit),
            3 if self.dice.one_in(10) => 65537,
            _ => self.dice.below(60),
        };
        let flags = match self.dice.below(6) {
            0 => SetXattrFlags::CREATE,
            1 => SetXattrFlags::REPLACE,
            _ => SetXattrFlags::empty(),
        };
        Op::set_xattr(self.node(model), self.xattr(), len as u32, self.dice.next_u64(), flags)
    }

    fn slot(&mut self) -> u8 {
        self.dice.below(u64::from(SLOTS)) as u8
    }
    fn xattr(&mut self) -> u8 {
        self.dice.below(u64::from(PROPERTY)) as u8
    }
    fn owner(&mut self) -> Option<u32> {
        *pick(&mut self.dice, &[None, Some(0), Some(1000), Some(u32::MAX - 1)])
    }
    fn perm(&mut self) -> u32 {
        *pick(
            &mut self.dice,
            &[0o644, 0o755, 0o600, 0o777, 0o2755, 0o4711, 0o6755, 0o2644, 0o1777, 0],
        )
    }
    fn flags(&mut self) -> u32 {
        let all = [
            0,
            0,
            chattr::NODUMP,
            chattr::NOATIME,
            chattr::DIRSYNC,
            chattr::NOCOW,
            chattr::NOCOW | chattr::NODUMP,
            chattr::COMPR,
            chattr::COMPR | chattr::NODUMP,
            chattr::NOCOMP,
            chattr::COMPR | chattr::NOCOMP,
            chattr::COMPR | chattr::NOCOW,
        ];
        *pick(&mut self.dice, &all)
    }

    fn touch(&mut self) -> Touch {
        match self.dice.below(5) {
            0 => Touch::Keep,
            1 => Touch::Now,
            2 => Touch::At(Timestamp::new(-1 - self.dice.below(1 << 30) as i64, 999_999_999)),
            3 => Touch::At(Timestamp::new(1 << 33, 1)),
            _ => Touch::At(Timestamp::new(
                self.dice.below(1 << 31) as i64,
                self.dice.below(1_000_000_000) as u32,
            )),
        }
    }

    /// A length: mostly some blocks, now and then a few bytes or a megabyte.
    fn len(&mut self) -> u64 {
        let skew = *pick(&mut self.dice, &[0, 0, 0, 1, BLOCK_BYTES - 1, 100, 2048]);
        match self.dice.below(40) {
            _ if self.mix.bulky && self.dice.one_in(5) => self.dice.below(400) * BLOCK_BYTES + skew,
            0..=13 => self.dice.below(BLOCK_BYTES * 2),
            14..=33 => self.dice.below(16) * BLOCK_BYTES + skew,
            34..=38 => self.dice.below(64) * BLOCK_BYTES + skew,
            _ if self.dice.one_in(4) => self.dice.below(400) * BLOCK_BYTES + skew,
            _ => 0,
        }
    }

    /// An offset: near the end, at the border of a block, or anywhere.
    fn offset(&mut self, model: &Model, at: &At) -> u64 {
        let size = match model.resolve(at) {
            Ok(id) => model.node(id).size_bytes().min(1 << 50),
            Err(_) => 0,
        };
        let near = |base: u64, dice: &mut Rng| match dice.below(6) {
            0 => base.saturating_sub(1),
            1 => base + 1,
            2 => base + dice.below(BLOCK_BYTES),
            _ => base,
        };
        match self.dice.below(100) {
            0..=14 => 0,
            15..=29 => near(size, &mut self.dice),
            30..=39 => size.div_ceil(BLOCK_BYTES) * BLOCK_BYTES,
            40..=69 => near(self.dice.below(SMALL_BYTES / BLOCK_BYTES) * BLOCK_BYTES, &mut self.dice),
            70..=89 => self.dice.below(size + 1),
            90..=96 => near(self.dice.below(LARGE_BYTES / BLOCK_BYTES) * BLOCK_BYTES, &mut self.dice),
            97 => (1 << 40) + self.dice.below(1 << 20),
            98 => self.dice.below(SMALL_BYTES),
            _ => *pick(
                &mut self.dice,
                &[
                    Model::FILE_BYTES_MAX - 1,
                    Model::FILE_BYTES_MAX,
                    Model::FILE_BYTES_MAX - BLOCK_BYTES,
                    u64::MAX - 5,
                ],
            ),
        }
    }

    /// A directory that exists, mostly near the root.
    fn dir(&mut self, model: &Model) -> At {
        if self.dice.one_in(30) {
            return At::Slot(self.slot());
        }
        let mut path: Vec<Name> = self.mix.below.into_iter().collect();
        let subvolumes = if path.is_empty() {
            model.subvolumes()
        } else {
            Vec::new()
        };
        if !subvolumes.is_empty() && self.dice.one_in(2) {
            path = pick(&mut self.dice, &subvolumes).clone();
        }
        while path.len() < DEPTH_MAX && !self.dice.one_in(3) {
            let Ok(here) = model.resolve(&At::Path(path.clone())) else {
                break;
            };
            let dirs = names_of(model, here, |id| model.node(id).is_dir());
            if dirs.is_empty() {
                break;
            }
            path.push(*pick(&mut self.dice, &dirs));
        }
        At::Path(path)
    }

    /// A name that is probably free.
    fn free_place(&mut self, model: &Model) -> Place {
        let name = match self.dice.below(100) {
            0..=59 => Name(self.dice.below(u64::from(Name::HOT)) as u16),
            60..=69 => Name(self.dice.below(u64::from(Name::FIRST_LONG)) as u16),
            70..=71 => Name(Name::FIRST_LONG + self.dice.below(2) as u16),
            72 if self.dice.one_in(4) => Name::TOO_LONG,
            _ => Name(Name::FIRST_WIDE + self.dice.below(u64::from(Name::WIDE)) as u16),
        };
        Place {
            dir: self.dir(model),
            name,
        }
    }

    /// A name that exists, if there is one.
    fn place(&mut self, model: &Model, want_dir: bool) -> Place {
        let dir = self.dir(model);
        if let Ok(here) = model.resolve(&dir)
            && !self.dice.one_in(20)
        {
            let picky = !self.dice.one_in(8);
            let names = names_of(model, here, |id| !picky || model.node(id).is_dir() == want_dir);
            if !names.is_empty() {
                return Place {
                    dir,
                    name: *pick(&mut self.dice, &names),
                };
            }
        }
        Place {
            dir,
            ..self.free_place(model)
        }
    }

    fn at_of(&mut self, place: Place) -> At {
        match place.dir {
            At::Path(mut path) => {
                path.push(place.name);
                At::Path(path)
            }
            slot => slot,
        }
    }

    /// Any node.
    fn node(&mut self, model: &Model) -> At {
        if self.dice.one_in(6) {
            return At::Slot(self.slot());
        }
        if self.dice.one_in(10) {
            return self.dir(model);
        }
        let want_dir = self.dice.one_in(4);
        let place = self.place(model, want_dir);
        self.at_of(place)
    }

    /// A regular file, mostly.
    fn file(&mut self, model: &Model) -> At {
        if self.dice.one_in(30) {
            return self.node(model);
        }
        if self.dice.one_in(6) {
            return At::Slot(self.slot());
        }
        let dir = self.dir(model);
        if let Ok(here) = model.resolve(&dir) {
            let is_file = |id: Id| matches!(model.node(id).body, Body::File(_));
            let mut names = names_of(model, here, is_file);
            // Few files get most of the data.
            if !self.dice.one_in(4) {
                names.truncate(6);
            }
            if !names.is_empty() {
                let name = *pick(&mut self.dice, &names);
                return self.at_of(Place { dir, name });
            }
        }
        let place = self.place(model, false);
        self.at_of(place)
    }
}

fn names_of(model: &Model, dir: Id, wanted: impl Fn(Id) -> bool) -> Vec<Name> {
    match model.names(dir) {
        Ok(names) => names
            .iter()
            .filter(|(_, id)| wanted(**id))
            .map(|(name, _)| *name)
            .collect(),
        Err(_) => Vec::new(),
    }
}
