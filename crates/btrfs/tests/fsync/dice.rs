//! Chance that follows from a seed.

use cowshed_device_sim::Rng;

/// Runs seeds: `COWSHED_{name}_SEED` alone, or as many as `COWSHED_{name}_SEEDS` says. `run` gives
/// how many logs were written, and how many commits in their place. Returns both, of all.
pub fn for_each_seed(name: &str, usual: u64, mut run: impl FnMut(u64) -> (u64, u64)) -> (u64, u64) {
    let number = |name: String| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number(format!("COWSHED_{name}_SEED")) {
        Some(seed) => seed..seed + 1,
        None => 0..number(format!("COWSHED_{name}_SEEDS")).unwrap_or(usual),
    };
    let (mut logs, mut commits) = (0, 0);
    for seed in seeds {
        let done = run(seed);
        (logs, commits) = (logs + done.0, commits + done.1);
    }
    println!("{logs} logs, {commits} commits");
    (logs, commits)
}

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
