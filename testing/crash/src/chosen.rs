//! Which images of a run are judged where there is no time for all.

use cowshed_device_sim::crash::{CrashImage, CrashImages, Shape};

/// At most so many images, evenly over the run; half of them are prefixes, which are what a device leaves that keeps the order of
/// its writes, and of which a run has fewer than of all else.
pub(crate) fn evenly<'i>(
    images: impl Fn() -> CrashImages<'i>,
    seed: u64,
    images_max: usize,
) -> impl Iterator<Item = CrashImage> {
    let numbers = numbers(images().shapes(), seed, images_max);
    let mut images = images();
    let mut at = 0;
    numbers.into_iter().filter_map(move |number| {
        let image = images.nth(number - at);
        at = number + 1;
        image
    })
}

/// Their numbers, in order.
fn numbers(shapes: impl Iterator<Item = Shape>, seed: u64, images_max: usize) -> Vec<usize> {
    let (mut prefixes, mut others) = (Vec::new(), Vec::new());
    for (number, shape) in shapes.enumerate() {
        match shape {
            Shape::Prefix => prefixes.push(number),
            Shape::Scattered => others.push(number),
        }
    }
    // What one side has too few of, the other gets.
    let half = images_max / 2;
    let of_prefixes = half.max(images_max.saturating_sub(others.len())).min(prefixes.len());
    let mut numbers = spread(&prefixes, of_prefixes, seed);
    numbers.extend(spread(&others, images_max - of_prefixes, seed));
    numbers.sort_unstable();
    numbers
}

/// So many, or all, evenly spread; where they begin follows from the seed.
fn spread(all: &[usize], count: usize, seed: u64) -> Vec<usize> {
    let len = all.len().max(1);
    let (count, first) = (count.min(all.len()), seed as usize % len);
    (0..count).map(|n| all[(n * len + first) / count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_chosen_are_prefixes() {
        // One prefix in ten.
        let shape = |n: usize| {
            if n.is_multiple_of(10) {
                Shape::Prefix
            } else {
                Shape::Scattered
            }
        };
        for seed in 0..20 {
            let chosen = numbers((0..10_000).map(shape), seed, 100);
            let prefixes = chosen.iter().filter(|n| shape(**n) == Shape::Prefix).count();
            assert_eq!((prefixes, chosen.len()), (50, 100));
            let gap = chosen.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(gap < Some(500) && chosen.is_sorted(), "{chosen:?}");
        }
    }

    #[test]
    fn few_images_are_all_chosen() {
        let shape = |n: usize| if n < 3 { Shape::Prefix } else { Shape::Scattered };
        for count in [1, 3, 4, 20] {
            assert_eq!(numbers((0..count).map(shape), 7, 20), (0..count).collect::<Vec<_>>());
        }
        assert!(numbers((0..0).map(shape), 7, 20).is_empty());
        assert!(numbers((0..20).map(shape), 7, 0).is_empty());
    }
}
