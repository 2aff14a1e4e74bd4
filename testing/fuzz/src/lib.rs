//! Whole-image fuzzing of the engine and of the checker: sound volumes, damaged where it hurts,
//! opened and used.
//!
//! One number makes one image: it chooses a sound volume ([`seeds`]), the damage ([`mutate`]) and
//! what is done with the result ([`exercise`]). Errors are the right answer to damage. What must
//! not happen: a panic (our own asserts included: a stranger's bytes must not trigger them), a
//! hang, memory without bound ([`guard`]), and a volume that the checker found sound and finds
//! damaged after we have written to it.

pub mod exercise;
pub mod guard;
mod image;
pub mod layout;
pub mod mutate;
pub mod pack;
pub mod seeds;
pub mod walk;
pub mod xfs;

pub use image::Image;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cowshed_device::MemDevice;
use cowshed_device_sim::Rng;

use exercise::Outcome;
use seeds::Base;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    pub duration: Duration,
    /// Stop after so many images, however fast the machine is.
    pub images_max: Option<u64>,
    pub seed: u64,
    /// Where to keep the images of failures.
    pub keep: Option<PathBuf>,
    /// Stop after so many failures of different places.
    pub failures_max: usize,
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Summary {
    pub images: u64,
    /// The checker found nothing before we wrote.
    pub clean: u64,
    pub opened: u64,
    pub opened_for_writing: u64,
    /// Everything written was committed.
    pub committed: u64,
    /// The checker found nothing, and the engine could not read something.
    pub disagreed: u64,
    /// The first few of these: the case, and what the engine said.
    pub disagreements: Vec<(u64, String)>,
    pub failures: Vec<Failure>,
    pub elapsed: Duration,
}

/// A case that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    pub case: u64,
    /// Where: failures of the same place are counted once.
    pub place: String,
    pub what: String,
}

impl Summary {
    fn add(&mut self, case: u64, outcome: &Outcome) {
        if let Some(what) = &outcome.disagreement
            && self.disagreements.len() < 10
        {
            self.disagreements.push((case, what.clone()));
        }
        self.images += 1;
        self.clean += u64::from(outcome.clean);
        self.opened += u64::from(outcome.opened);
        self.opened_for_writing += u64::from(outcome.opened_for_writing);
        self.committed += u64::from(outcome.committed);
        self.disagreed += u64::from(outcome.disagreement.is_some());
    }
}

/// Where cases come from.
pub trait Cases {
    /// Makes the image of a case.
    fn image(&self, case: u64) -> (Image, Rng);
    /// Runs everything on it. The error is a promise that was broken.
    fn exercise(&self, image: &Image, rng: Rng) -> Result<Outcome, String>;
}

/// Volumes of btrfs.
impl Cases for [Base] {
    fn image(&self, case: u64) -> (Image, Rng) {
        let mut rng = Rng::new(case);
        let base = &self[rng.index(self.len())];
        let devices: Vec<Arc<MemDevice>> = base.devices.iter().map(|d| Arc::new(d.snapshot())).collect();
        let mut damage = mutate::Damage::new(&devices, &base.layout);
        let rounds = 1 + rng.below(4);
        for _ in 0..rounds {
            damage.add(&mut rng);
        }
        let cut = damage.cut_at;
        let description = format!("{}: {}", base.name, damage.done.join("; "));
        (Image::new(devices, cut, description), rng)
    }

    fn exercise(&self, image: &Image, rng: Rng) -> Result<Outcome, String> {
        exercise::run(image, rng)
    }
}

/// The seed of the n-th case of a run.
pub fn case_of(seed: u64, n: u64) -> u64 {
    Rng::new(seed.rotate_left(32) ^ n).next_u64()
}

/// Runs one case.
pub fn run_case<C: Cases + ?Sized>(bases: &C, case: u64) -> Result<Outcome, Failure> {
    guard::begin(case);
    let result = guard::catching(|| {
        let (image, rng) = bases.image(case);
        bases.exercise(&image, rng)
    });
    guard::end();
    let (place, what) = match result {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(broken)) => (broken.lines().next().unwrap_or_default().to_owned(), broken),
        Err(panics) => (panics.place, panics.what),
    };
    Err(Failure { case, place, what })
}

/// Runs cases until the time is over or the images are done.
pub fn run<C: Cases + ?Sized>(options: &Options, bases: &C, mut progress: impl FnMut(&Summary)) -> Summary {
    let started = Instant::now();
    let mut summary = Summary::default();
    let mut reported = Instant::now();
    for n in 0..options.images_max.unwrap_or(u64::MAX) {
        if started.elapsed() >= options.duration {
            break;
        }
        let case = case_of(options.seed, n);
        match run_case(bases, case) {
            Ok(outcome) => summary.add(case, &outcome),
            Err(failure) => {
                summary.images += 1;
                if !summary.failures.iter().any(|known| known.place == failure.place) {
                    keep(options, bases, case);
                    summary.failures.push(failure);
                }
                if summary.failures.len() >= options.failures_max {
                    break;
                }
            }
        }
        if reported.elapsed() > Duration::from_secs(10) {
            summary.elapsed = started.elapsed();
            progress(&summary);
            reported = Instant::now();
        }
    }
    summary.elapsed = started.elapsed();
    summary
}

fn keep<C: Cases + ?Sized>(options: &Options, bases: &C, case: u64) {
    let Some(dir) = &options.keep else { return };
    let (image, _) = bases.image(case);
    let _ = std::fs::create_dir_all(dir);
    for (index, device) in image.devices.iter().enumerate() {
        let _ = device.save(dir.join(format!("{case:016x}.{index}.img")));
    }
    let _ = std::fs::write(dir.join(format!("{case:016x}.txt")), &image.description);
}
