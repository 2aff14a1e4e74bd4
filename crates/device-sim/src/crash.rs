//! What may be on the devices after the power failed.
//!
//! The model: the power fails after some event of the log. On each device everything before its
//! last barrier is there; of the writes since then, each is there, or is not, or is torn: some of
//! its sectors are there. A discard that is pending has happened or has not; where it has, the
//! range holds zeros or garbage, by the seed. Overlapping writes and discards keep their order.
//!
//! It is enough to let the power fail just before each barrier and at the end of the log: whatever
//! is pending at any other moment is a subset of what is pending then. Marks that stand before that
//! moment count as seen by the program, so what it promised up to them must hold in the image.
//!
//! The enumeration is the same from the same log and options: image `number` is
//! `images.nth(number)`, and a sample of a long run is `images.step_by(n)`. To leave the making of
//! a volume out, let the bases be its snapshots, taken when [`crate::Log::take`] starts the log
//! anew.
//!
//! With few pending changes all subsets are made. With many: none, all, every prefix (beyond a
//! limit evenly spread ones), and a sample by seed of the rest: every one left out, every one
//! alone, as far as the limit goes, and subsets by chance.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;

use cowshed_device::{BlockDevice, MemDevice};

use crate::{DeviceIndex, Event, Rng};

#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// At a moment with at most this many subsets of pending changes, all of them are made.
    pub exhaustive_images_max: usize,
    /// How many prefixes are made otherwise: what is there if the device keeps the order of the
    /// writes.
    pub prefix_images_max: usize,
    /// How many other subsets are made then.
    pub sampled_images: usize,
    /// How many images with a torn write are made at each moment, in addition.
    pub torn_images: usize,
    /// The unit that is never torn: the sector of the device, 512 or 4096.
    pub tear_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            exhaustive_images_max: 256,
            prefix_images_max: 64,
            sampled_images: 128,
            torn_images: 32,
            tear_bytes: 512,
        }
    }
}

/// What became of one pending change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Lost,
    Whole,
    /// Which sectors of the write arrived.
    Torn(Box<[bool]>),
}

type Choice = Vec<Fate>;

/// One possible state of the devices, writable and independent of all others.
#[derive(Debug)]
pub struct CrashImage {
    /// Counted from 0 over the whole enumeration: the way to find this image again.
    pub number: u64,
    /// How many events of the log the program had seen complete or under way.
    pub events: usize,
    /// The marks among them.
    pub marks: Vec<u64>,
    pub devices: Vec<MemDevice>,
    fates: Choice,
}

impl CrashImage {
    /// The last mark that the program had set.
    pub fn last_mark(&self) -> Option<u64> {
        self.marks.last().copied()
    }
}

/// For the message of a failing test: the moment, and the fate of each pending change (`+` there,
/// `-` lost, `[+-]` by sector where torn).
impl fmt::Display for CrashImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash image {} after event {}, pending:", self.number, self.events)?;
        let sign = |there: bool| if there { '+' } else { '-' };
        for fate in &self.fates {
            match fate {
                Fate::Lost => write!(f, " -")?,
                Fate::Whole => write!(f, " +")?,
                Fate::Torn(kept) => write!(f, " [{}]", kept.iter().map(|&k| sign(k)).collect::<String>())?,
            }
        }
        Ok(())
    }
}

/// What is there of the pending changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The first ones, or none, or all.
    Prefix,
    /// Later ones without earlier ones, or a torn one.
    Scattered,
}

fn shape(fates: &Choice) -> Shape {
    let there = fates.iter().take_while(|fate| **fate == Fate::Whole).count();
    match fates[there..].iter().all(|fate| *fate == Fate::Lost) {
        true => Shape::Prefix,
        false => Shape::Scattered,
    }
}

/// The enumeration: an iterator over the images of a log.
#[derive(Debug)]
pub struct CrashImages<'a> {
    events: &'a [Event],
    options: Options,
    rng: Rng,
    /// What is on the devices for certain at the present moment.
    durable: Vec<MemDevice>,
    /// The changes that are not, as indices into `events`.
    pending: Vec<usize>,
    /// Events before this one have been looked at.
    at: usize,
    marks: Vec<u64>,
    choices: VecDeque<Choice>,
    /// The image of this moment has been made: there is nothing new since.
    made: bool,
    number: u64,
}

/// The recorded device has accepted the same change, and memory does not fail.
const SAME: &str = "a base is as large as the recorded device";

impl<'a> CrashImages<'a> {
    /// `bases` is what was on the devices when the log began, in the order of their
    /// [`DeviceIndex`].
    pub fn new(bases: &[MemDevice], events: &'a [Event], options: Options) -> CrashImages<'a> {
        assert!(
            options.tear_bytes.is_power_of_two(),
            "a sector's size is a power of two"
        );
        CrashImages {
            events,
            rng: Rng::new(options.seed),
            options,
            durable: bases.iter().map(MemDevice::snapshot).collect(),
            pending: Vec::new(),
            at: 0,
            marks: Vec::new(),
            choices: VecDeque::new(),
            made: false,
            number: 0,
        }
    }

    /// Of all images to come, in their order: after how many events the power failed, and the
    /// shape. None is made.
    pub fn outlines(mut self) -> impl Iterator<Item = (usize, Shape)> {
        std::iter::from_fn(move || {
            let (_, fates) = self.next_choice()?;
            Some((self.at, shape(&fates)))
        })
    }

    /// Goes to the next moment at which the power may fail. False at the end.
    fn advance(&mut self) -> bool {
        loop {
            let Some(event) = self.events.get(self.at) else {
                if self.made {
                    return false;
                }
                break;
            };
            match event {
                Event::Barrier { .. } if !self.made => break,
                Event::Barrier { device } => self.harden(*device),
                Event::Write { .. } | Event::Discard { .. } => {
                    self.pending.push(self.at);
                    self.made = false;
                }
                Event::Mark { id } => {
                    self.marks.push(*id);
                    self.made = false;
                }
            }
            self.at += 1;
        }
        self.made = true;
        let sectors: Vec<usize> = self.pending.iter().map(|&index| self.sectors(index)).collect();
        self.choices = choose(&sectors, &self.options, &mut self.rng).into();
        true
    }

    /// The number and the fates of the next image.
    fn next_choice(&mut self) -> Option<(u64, Choice)> {
        while self.choices.is_empty() {
            if !self.advance() {
                return None;
            }
        }
        let fates = self.choices.pop_front()?;
        let number = self.number;
        self.number += 1;
        Some((number, fates))
    }

    /// A barrier: what is pending on the device becomes durable.
    fn harden(&mut self, device: DeviceIndex) {
        let (done, pending): (Vec<usize>, Vec<usize>) = self
            .pending
            .drain(..)
            .partition(|&index| device_of(&self.events[index]) == Some(device));
        self.pending = pending;
        for index in done {
            self.apply(index, &Fate::Whole, &self.durable);
        }
    }

    /// Does to the devices what became of the change.
    fn apply(&self, index: usize, fate: &Fate, devices: &[MemDevice]) {
        let tear_bytes = self.options.tear_bytes;
        match (&self.events[index], fate) {
            (_, Fate::Lost) | (Event::Barrier { .. } | Event::Mark { .. }, _) => {}
            (
                Event::Write {
                    device,
                    offset_bytes,
                    data,
                },
                Fate::Whole,
            ) => {
                devices[device.0].write_at(*offset_bytes, data).expect(SAME);
            }
            (
                Event::Write {
                    device,
                    offset_bytes,
                    data,
                },
                Fate::Torn(kept),
            ) => {
                for (range, _) in sector_ranges(*offset_bytes, data.len(), tear_bytes)
                    .zip(kept)
                    .filter(|(_, kept)| **kept)
                {
                    let at = offset_bytes + range.start as u64;
                    devices[device.0].write_at(at, &data[range]).expect(SAME);
                }
            }
            (
                Event::Discard {
                    device,
                    offset_bytes,
                    len_bytes,
                },
                Fate::Whole | Fate::Torn(_),
            ) => {
                let range = *offset_bytes..offset_bytes + len_bytes;
                // The same in all images, and when it has become durable.
                discard(&devices[device.0], range, self.options.seed ^ index as u64);
            }
        }
    }

    /// How many parts the change may be torn into.
    fn sectors(&self, index: usize) -> usize {
        match &self.events[index] {
            Event::Write { offset_bytes, data, .. } => {
                sector_ranges(*offset_bytes, data.len(), self.options.tear_bytes).count()
            }
            Event::Discard { .. } | Event::Barrier { .. } | Event::Mark { .. } => 1,
        }
    }
}

impl Iterator for CrashImages<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        let (number, fates) = self.next_choice()?;
        let devices: Vec<MemDevice> = self.durable.iter().map(MemDevice::snapshot).collect();
        for (&index, fate) in self.pending.iter().zip(&fates) {
            self.apply(index, fate, &devices);
        }
        Some(CrashImage {
            number,
            events: self.at,
            marks: self.marks.clone(),
            devices,
            fates,
        })
    }

    // Images that are passed over are not made.
    fn nth(&mut self, n: usize) -> Option<CrashImage> {
        for _ in 0..n {
            self.next_choice()?;
        }
        self.next()
    }

    fn count(mut self) -> usize {
        std::iter::from_fn(|| self.next_choice()).count()
    }
}

fn device_of(event: &Event) -> Option<DeviceIndex> {
    match event {
        Event::Write { device, .. } | Event::Discard { device, .. } | Event::Barrier { device } => Some(*device),
        Event::Mark { .. } => None,
    }
}

/// The parts of a buffer that lie in one sector each, written at that offset.
fn sector_ranges(offset_bytes: u64, len_bytes: usize, tear_bytes: u64) -> impl Iterator<Item = Range<usize>> {
    let first = ((tear_bytes - offset_bytes % tear_bytes) as usize).min(len_bytes);
    let step = tear_bytes as usize;
    let head = (first > 0).then_some(0..first);
    head.into_iter().chain(
        (first..len_bytes)
            .step_by(step)
            .map(move |at| at..(at + step).min(len_bytes)),
    )
}

/// Leaves of a discarded range what a device may leave: zeros or garbage, a piece this, a piece
/// that.
fn discard(device: &MemDevice, range: Range<u64>, seed: u64) {
    const PIECE_BYTES: u64 = 1 << 20;
    let mut rng = Rng::new(seed);
    let mut at = range.start;
    while at < range.end {
        let end = (at + PIECE_BYTES).min(range.end);
        let done = match rng.one_in(4) {
            true => device.discard(at, end - at),
            false => device.scramble(at, end - at, rng.next_u64()),
        };
        done.expect(SAME);
        at = end;
    }
}

/// The choices to make of pending changes that have so many sectors each. No two are the same.
fn choose(sectors: &[usize], options: &Options, rng: &mut Rng) -> Vec<Choice> {
    let count = sectors.len();
    let exhaustive = count < usize::BITS as usize && 1usize << count <= options.exhaustive_images_max;
    let mut choices: Vec<Choice> = if exhaustive {
        (0..1usize << count)
            .map(|mask| subset(count, |i| mask >> i & 1 == 1))
            .collect()
    } else {
        sample(count, options, rng)
    };
    let mut seen: BTreeSet<Choice> = choices.iter().cloned().collect();
    let tearable: Vec<usize> = (0..count).filter(|&i| sectors[i] > 1).collect();
    if !tearable.is_empty() {
        for _ in 0..options.torn_images {
            let torn = tearable[rng.index(tearable.len())];
            let choice = torn_choice(count, torn, sectors[torn], rng);
            if seen.insert(choice.clone()) {
                choices.push(choice);
            }
        }
    }
    choices
}

fn subset(count: usize, mut there: impl FnMut(usize) -> bool) -> Choice {
    (0..count)
        .map(|i| if there(i) { Fate::Whole } else { Fate::Lost })
        .collect()
}

fn sample(count: usize, options: &Options, rng: &mut Rng) -> Vec<Choice> {
    let mut choices = vec![subset(count, |_| false), subset(count, |_| true)];
    choices.extend(prefix_ends(count, options.prefix_images_max).map(|end| subset(count, |i| i < end)));
    let mut seen: BTreeSet<Choice> = choices.iter().cloned().collect();
    let mut structured: Vec<Choice> = (0..count).map(|missing| subset(count, |i| i != missing)).collect();
    structured.extend((0..count).map(|alone| subset(count, |i| i == alone)));
    rng.shuffle(&mut structured);
    // Half of the budget to the structured ones, the rest to chance with densities from sparse to
    // nearly full.
    let images = options.sampled_images;
    structured.truncate(images / 2);
    for _ in 0..images.saturating_sub(2 + structured.len()) {
        let eighths = 1 + rng.below(7);
        structured.push(subset(count, |_| rng.below(8) < eighths));
    }
    choices.extend(structured.into_iter().filter(|choice| seen.insert(choice.clone())));
    choices
}

/// Where prefixes that are neither nothing nor everything end: all of them, or so many, evenly
/// spread.
fn prefix_ends(count: usize, images_max: usize) -> impl Iterator<Item = usize> {
    let all = count.saturating_sub(1);
    let images = all.min(images_max);
    (0..images).map(move |n| 1 + n * all / images)
}

/// One write is torn: its first sectors, its last ones, or any are there. Of the others those
/// before it are there and those after it are not, or chance decides.
fn torn_choice(count: usize, torn: usize, sectors: usize, rng: &mut Rng) -> Choice {
    let cut = 1 + rng.index(sectors - 1);
    let kept: Box<[bool]> = match rng.below(3) {
        0 => (0..sectors).map(|i| i < cut).collect(),
        1 => (0..sectors).map(|i| i >= cut).collect(),
        _ => (0..sectors).map(|_| rng.one_in(2)).collect(),
    };
    let in_order = rng.one_in(2);
    let mut choice = subset(count, |i| if in_order { i < torn } else { rng.one_in(2) });
    choice[torn] = Fate::Torn(kept);
    choice
}
