//! Which images of a run are judged where there is no time for all.

use std::collections::BTreeSet;

use cowshed_device_sim::crash::{CrashImage, CrashImages, Shape};

/// At most so many images, evenly over the run; half of them are prefixes, which are what a device
/// leaves that keeps the order of its writes, and of which a run has fewer than of all else.
///
/// A quarter is for the `moments`, in events: nothing that was written later is there.
pub fn evenly<'i>(
    images: impl Fn() -> CrashImages<'i>,
    moments: &[usize],
    seed: u64,
    images_max: usize,
) -> impl Iterator<Item = CrashImage> {
    let outlines: Vec<(usize, Shape)> = images().outlines().collect();
    let numbers = numbers(&outlines, moments, seed, images_max);
    let mut images = images();
    let mut at = 0;
    numbers.into_iter().filter_map(move |number| {
        let image = images.nth(number - at);
        at = number + 1;
        image
    })
}

/// Their numbers, in order.
fn numbers(outlines: &[(usize, Shape)], moments: &[usize], seed: u64, images_max: usize) -> BTreeSet<usize> {
    let (mut prefixes, mut others) = (Vec::new(), Vec::new());
    for (number, (_, shape)) in outlines.iter().enumerate() {
        match shape {
            Shape::Prefix => prefixes.push(number),
            Shape::Scattered => others.push(number),
        }
    }
    // Of the images of one moment that with nothing of what is pending is the first.
    let at = |moment: &usize| outlines.partition_point(|(events, _)| events < moment);
    // Moments between which nothing came have one image: it must not stand for two of those that
    // are chosen.
    let moments: BTreeSet<usize> = moments.iter().map(at).filter(|n| *n < outlines.len()).collect();
    let moments: Vec<usize> = moments.into_iter().collect();
    let mut numbers: BTreeSet<usize> = spread(&moments, images_max / 4, seed).into_iter().collect();
    for side in [&mut prefixes, &mut others] {
        side.retain(|number| !numbers.contains(number));
    }
    let left = images_max - numbers.len();
    // What one side has too few of, the other gets.
    let half = left / 2;
    let of_prefixes = half.max(left.saturating_sub(others.len())).min(prefixes.len());
    numbers.extend(spread(&prefixes, of_prefixes, seed));
    numbers.extend(spread(&others, left - of_prefixes, seed));
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

    fn chosen(outlines: &[(usize, Shape)], moments: &[usize], seed: u64, images_max: usize) -> Vec<usize> {
        numbers(outlines, moments, seed, images_max).into_iter().collect()
    }

    /// One prefix in ten.
    fn outlines(count: usize) -> Vec<(usize, Shape)> {
        let shape = |n: usize| match n.is_multiple_of(10) {
            true => Shape::Prefix,
            false => Shape::Scattered,
        };
        (0..count).map(|n| (n / 10, shape(n))).collect()
    }

    #[test]
    fn half_of_the_chosen_are_prefixes() {
        let outlines = outlines(10_000);
        for seed in 0..20 {
            let chosen = chosen(&outlines, &[], seed, 100);
            let prefixes = chosen.iter().filter(|n| outlines[**n].1 == Shape::Prefix).count();
            assert_eq!((prefixes, chosen.len()), (50, 100));
            let gap = chosen.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(gap < Some(500), "{chosen:?}");
        }
    }

    #[test]
    fn few_images_are_all_chosen() {
        for count in [1, 3, 4, 20] {
            assert_eq!(chosen(&outlines(count), &[], 7, 20), (0..count).collect::<Vec<_>>());
        }
        assert!(chosen(&[], &[], 7, 20).is_empty());
        assert!(chosen(&outlines(20), &[], 7, 0).is_empty());
    }

    #[test]
    fn moments_are_among_the_chosen() {
        let outlines = outlines(1000);
        for seed in 0..20 {
            let chosen = chosen(&outlines, &[33, 57, 100], seed, 20);
            assert!(chosen.contains(&330) && chosen.contains(&570), "{chosen:?}");
            assert_eq!(chosen.len(), 20, "{chosen:?}");
        }
    }

    #[test]
    fn moments_of_one_image_are_chosen_once() {
        let outlines = outlines(1000);
        let moments = [33, 33, 33, 33, 33, 57, 61, 61, 72, 80];
        for seed in 0..20 {
            let chosen = chosen(&outlines, &moments, seed, 20);
            for number in [330, 570, 610, 720, 800] {
                assert!(chosen.contains(&number), "{number} in {chosen:?}");
            }
        }
    }
}
