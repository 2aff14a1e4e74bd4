//! The enumerator finds the bugs that it is made for, and does not invent any.

use std::collections::BTreeSet;
use std::sync::Arc;

use cowshed_device::{BlockDevice, MemDevice, WriteOp};
use cowshed_device_sim::crash::{CrashImage, CrashImages, Options, Shape};
use cowshed_device_sim::{Event, Log};

const SIZE_BYTES: u64 = 1 << 20;

fn recorded(count: usize) -> (Log, Vec<Arc<dyn BlockDevice>>, Vec<MemDevice>) {
    let log = Log::new();
    let bases: Vec<MemDevice> = (0..count)
        .map(|i| MemDevice::new(format!("disk{i}"), SIZE_BYTES))
        .collect();
    let devices = bases
        .iter()
        .map(|base| Arc::new(log.record(Arc::new(base.snapshot()))) as _)
        .collect();
    (log, devices, bases)
}

fn byte(device: &dyn BlockDevice, offset_bytes: u64) -> u8 {
    let mut buf = [0];
    device.read_at(offset_bytes, &mut buf).unwrap();
    buf[0]
}

#[test]
fn all_subsets_of_a_small_epoch_and_nothing_across_a_barrier() {
    let (log, devices, bases) = recorded(1);
    for i in 0..3 {
        devices[0].write_at(i * 512, &[1]).unwrap();
    }
    devices[0].flush().unwrap();
    devices[0].write_at(3 * 512, &[1]).unwrap();
    let events = log.take();
    let images: Vec<String> = CrashImages::new(&bases, &events, Options::default())
        .map(|image| (0..4).map(|i| byte(&image.devices[0], i * 512).to_string()).collect())
        .collect();
    let distinct: BTreeSet<&str> = images.iter().map(String::as_str).collect();
    let expected = ["0000", "0010", "0100", "0110", "1000", "1010", "1100", "1110", "1111"];
    assert_eq!(distinct, BTreeSet::from(expected));
    assert_eq!(images.len(), 8 + 2);
}

/// What a device leaves that keeps the order of its writes: the seed has no say in it.
#[test]
fn every_prefix_is_made_whatever_the_budget_of_the_sample() {
    for (count, prefix_images_max, expected) in [(6, 64, 5), (40, 64, 39), (40, 8, 8), (200, 64, 64), (40, 0, 0)] {
        let (log, devices, bases) = recorded(1);
        for i in 0..count {
            devices[0].write_at(i * 512, &[1]).unwrap();
        }
        let events = log.take();
        for seed in 0..4 {
            let options = Options {
                seed,
                exhaustive_images_max: 32,
                prefix_images_max,
                sampled_images: 4,
                torn_images: 2,
                ..Options::default()
            };
            let images = || CrashImages::new(&bases, &events, options.clone());
            let is_prefix = |image: &CrashImage| {
                let there: Vec<bool> = (0..count).map(|i| byte(&image.devices[0], i * 512) == 1).collect();
                let end = there.iter().take_while(|there| **there).count();
                (!there[end..].contains(&true)).then_some(end as u64)
            };
            let ends: Vec<Option<u64>> = images().map(|image| is_prefix(&image)).collect();
            let distinct: BTreeSet<u64> = ends.iter().flatten().copied().collect();
            let inner: Vec<u64> = distinct
                .iter()
                .copied()
                .filter(|end| (1..count).contains(end))
                .collect();
            assert!(distinct.contains(&0) && distinct.contains(&count));
            // Chance may add one that is a prefix.
            assert!(
                inner.len() >= expected && inner.len() <= expected + 4,
                "{count}: {inner:?}"
            );
            let gap = inner.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
            assert!(
                expected == 0 || gap <= count.div_ceil(expected as u64),
                "evenly spread: {inner:?}"
            );
            let shapes: Vec<bool> = images().outlines().map(|(_, shape)| shape == Shape::Prefix).collect();
            assert_eq!(shapes, ends.iter().map(Option::is_some).collect::<Vec<_>>());
        }
    }
}

/// A toy volume: version n writes its two data sectors, then a superblock which names n. The
/// invariant: the superblock's version is at least the acknowledged one, and its data is complete.
fn run_toy(with_barrier: bool, options: Options) -> Result<usize, String> {
    let (log, devices, bases) = recorded(1);
    for version in 1..=3u8 {
        let place = 4096 * u64::from(version);
        let data = [version; 1024];
        devices[0]
            .write_batch(&[WriteOp {
                offset_bytes: place,
                data: &data,
            }])
            .unwrap();
        if with_barrier {
            devices[0].flush().unwrap();
        }
        devices[0].write_at(0, &[version; 512]).unwrap();
        devices[0].flush().unwrap();
        log.mark(version.into());
    }
    let events = log.take();
    let mut images = 0;
    for image in CrashImages::new(&bases, &events, options) {
        images += 1;
        let version = byte(&image.devices[0], 0);
        if u64::from(version) < image.last_mark().unwrap_or(0) {
            return Err(format!("{image}: acknowledged version lost"));
        }
        let mut data = [0; 1024];
        image.devices[0].read_at(4096 * u64::from(version), &mut data).unwrap();
        if data != [version; 1024] {
            return Err(format!("{image}: superblock before its data"));
        }
    }
    Ok(images)
}

#[test]
fn a_correct_protocol_passes_and_a_missing_barrier_is_found() {
    assert!(run_toy(true, Options::default()).unwrap() > 10);
    assert!(
        run_toy(
            false,
            Options {
                torn_images: 0,
                ..Options::default()
            }
        )
        .is_err()
    );
    // When no whole write may be lost but one, tearing alone finds it too.
    let torn_only = Options {
        exhaustive_images_max: 0,
        prefix_images_max: 0,
        sampled_images: 2,
        torn_images: 64,
        ..Options::default()
    };
    let found = run_toy(false, torn_only).unwrap_err();
    assert!(found.contains('['), "{found}");
}

#[test]
fn a_barrier_covers_its_own_device_only() {
    let (log, devices, bases) = recorded(2);
    devices[0].write_at(0, &[1]).unwrap();
    devices[1].write_at(0, &[1]).unwrap();
    devices[0].flush().unwrap();
    log.mark(7);
    let events = log.take();
    let after: BTreeSet<(u8, u8)> = CrashImages::new(&bases, &events, Options::default())
        .filter(|image| image.last_mark() == Some(7))
        .map(|image| (byte(&image.devices[0], 0), byte(&image.devices[1], 0)))
        .collect();
    assert_eq!(after, BTreeSet::from([(1, 0), (1, 1)]));
}

#[test]
fn a_large_epoch_is_sampled_repeatably_with_its_corner_cases() {
    let (log, devices, bases) = recorded(1);
    for i in 0..40 {
        devices[0].write_at(i * 4096, &[1; 4096]).unwrap();
    }
    let events = log.take();
    let options = |seed| Options {
        seed,
        torn_images: 10,
        ..Options::default()
    };
    let describe = |seed| -> Vec<String> {
        CrashImages::new(&bases, &events, options(seed))
            .map(|image| image.to_string())
            .collect()
    };
    let images = describe(1);
    assert_eq!(images, describe(1));
    assert_ne!(images, describe(2));
    // 39 prefixes beside the sample.
    assert!(images.len() <= 39 + 138 && images.len() > 39 + 100, "{}", images.len());
    assert!(
        images[0].ends_with(&"- ".repeat(40).trim_end().to_string()),
        "{}",
        images[0]
    );
    assert!(
        images[1].ends_with(&"+ ".repeat(40).trim_end().to_string()),
        "{}",
        images[1]
    );
    assert_eq!(images.iter().collect::<BTreeSet<_>>().len(), images.len());
    for (number, image) in CrashImages::new(&bases, &events, options(1)).enumerate() {
        assert_eq!(image.number, number as u64);
        assert_eq!(image.to_string(), images[number]);
    }
}

#[test]
fn overlapping_writes_keep_their_order_and_discards_count() {
    let (log, devices, bases) = recorded(1);
    devices[0].write_at(0, &[1]).unwrap();
    devices[0].write_at(0, &[2]).unwrap();
    devices[0].write_at(16384, &[9]).unwrap();
    devices[0].flush().unwrap();
    devices[0].discard(16384, 16384).unwrap();
    let events = log.take();
    assert!(matches!(
        events[4],
        Event::Discard {
            offset_bytes: 16384,
            ..
        }
    ));
    let last = |seed| -> BTreeSet<(u8, u8)> {
        let options = Options {
            seed,
            ..Options::default()
        };
        CrashImages::new(&bases, &events, options)
            .filter(|image| image.events == events.len())
            .map(|image| (byte(&image.devices[0], 0), byte(&image.devices[0], 16384)))
            .collect()
    };
    // Not discarded yet, and what the discard leaves: zeros or anything else.
    let seen: Vec<_> = (0..16).map(last).collect();
    assert!(seen.iter().all(|last| last.len() == 2 && last.contains(&(2, 9))));
    assert!(seen.iter().any(|last| last.contains(&(2, 0))));
    assert!(seen.iter().any(|last| !last.contains(&(2, 0))));
}

#[test]
fn the_end_state_is_among_the_images() {
    let log = Log::new();
    let base = MemDevice::new("disk", SIZE_BYTES);
    base.write_at(100, &[3; 5000]).unwrap();
    let below = Arc::new(base.snapshot());
    let device = log.record(below.clone());
    device.write_at(200, &[4; 10_000]).unwrap();
    device.flush().unwrap();
    device.write_at(300, &[5; 100]).unwrap();
    let events = log.take();
    let whole = |device: &MemDevice| {
        let mut bytes = vec![0; SIZE_BYTES as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let images: Vec<Vec<u8>> = CrashImages::new(&[base], &events, Options::default())
        .map(|image| whole(&image.devices[0]))
        .collect();
    assert!(images.contains(&whole(&below)));
}
