//! Choices that follow from a seed.

pub use cowshed_device_sim::Rng;

/// One of a list, which is not empty.
pub fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.index(from.len())]
}
