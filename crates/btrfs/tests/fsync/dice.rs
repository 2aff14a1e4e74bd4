//! Chance that follows from a seed.

use cowshed_device_sim::Rng;

pub struct Dice(Rng);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Rng::new(seed))
    }
    pub fn below(&mut self, limit: usize) -> usize {
        // Not `Rng::below`: the seeds on record mean these numbers.
        (self.0.next_u64() % limit as u64) as usize
    }
    pub fn pick<'a>(&mut self, all: &'a [String]) -> Option<&'a String> {
        (!all.is_empty()).then(|| &all[self.below(all.len())])
    }
}
