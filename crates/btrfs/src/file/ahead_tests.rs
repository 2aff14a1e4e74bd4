//! Readahead of compressed extents: a sequential reader finds the next extents decompressed, an
//! extent that is not read costs nothing, and nothing else can be observed of it.

use std::sync::atomic::Ordering::Relaxed;

use cowshed_device::BlockDevice;

use super::small_reads_tests::{EXTENT, extents, files, read_all, read_in_turn, remount};
use super::tests::Bench;
use crate::error::{Error, StoreError};
use crate::files::EngineOptions;

fn reading_ahead(count: usize, extents_each: usize) -> Bench {
    let mut bench = files(count, extents_each);
    remount(&mut bench, 3, EngineOptions::default());
    bench
}

/// The first bytes of an extent of the first file.
fn read_head(bench: &Bench, index: usize) -> Result<(), Error> {
    let mut buf = [0; 100];
    let at = index * EXTENT;
    super::read(bench.mount(), &bench.inode(0), at as u64, &mut buf)?;
    assert_eq!(buf, bench.files[0][at..at + 100]);
    Ok(())
}

/// Reads what is left of it.
fn read_tail(bench: &Bench, index: usize) {
    let mut buf = vec![0; EXTENT - 100];
    let at = index * EXTENT + 100;
    super::read(bench.mount(), &bench.inode(0), at as u64, &mut buf).unwrap();
    assert!(buf == bench.files[0][at..at + buf.len()]);
}

/// Which extents of the first file are decompressed.
fn decompressed(bench: &Bench) -> Vec<usize> {
    let all = extents(&bench.inode(0));
    let is_kept = |index: &usize| bench.mount().data().is_cached(all[*index]);
    (0..all.len()).filter(is_kept).collect()
}

#[test]
fn what_comes_next_is_decompressed_twice_as_far_each_time() {
    let bench = reading_ahead(1, 32);
    let mut seen = Vec::new();
    for index in 0..32 {
        read_head(&bench, index).unwrap();
        seen.push(decompressed(&bench).len());
        read_tail(&bench, index);
    }
    let mut expected = vec![1, 3, 3];
    expected.extend([7; 4]);
    for more in [15, 23, 31] {
        expected.extend([more; 8]);
    }
    // The file ends here.
    expected.push(32);
    assert_eq!(seen, expected);
    assert_eq!(bench.mount().data().decompressions.load(Relaxed), 32);
}

#[test]
fn each_extent_is_decompressed_once_whatever_the_step() {
    for step in [1000, 4096, 65_536, 100_000, EXTENT, EXTENT + 4096, 3 * EXTENT] {
        let times = read_in_turn(&reading_ahead(1, 40), step);
        assert_eq!(times, 1.0, "steps of {step}");
    }
}

#[test]
fn random_reads_trigger_no_readahead() {
    let bench = reading_ahead(1, 16);
    for index in [3, 4, 9, 2, 15, 1] {
        read_head(&bench, index).unwrap();
    }
    assert_eq!(decompressed(&bench), [1, 2, 3, 4, 9, 15]);
    // Nor for a reader that starts at another place, until it has gone on from there.
    read_tail(&bench, 1);
    read_head(&bench, 2).unwrap();
    assert_eq!(decompressed(&bench), [1, 2, 3, 4, 9, 15]);
}

#[test]
fn nothing_is_read_ahead_for_large_reads_nor_where_it_is_not_wanted_nor_with_one_processor() {
    let mut bench = files(1, 24);
    let not_wanted = EngineOptions {
        read_ahead: false,
        ..EngineOptions::default()
    };
    for (processors, options, step) in [
        (3, EngineOptions::default(), 8 * EXTENT),
        (3, not_wanted, EXTENT),
        (1, EngineOptions::default(), EXTENT),
    ] {
        remount(&mut bench, processors, options);
        read_all(&bench, 0, step, "in order");
        assert_eq!(decompressed(&bench), [0; 0], "{processors} processors, steps of {step}");
    }
    remount(&mut bench, 3, EngineOptions::default());
    read_all(&bench, 0, EXTENT, "in order");
    // All but those that were read whole before they were in the cache: 0, 1, 3, 7, 15, 23.
    assert_eq!(decompressed(&bench).len(), 18);
}

#[test]
fn more_files_by_turns_than_can_be_kept_are_not_read_ahead_for_long() {
    let mut bench = files(48, 32);
    let little_memory = EngineOptions {
        memory_bytes_max: 16 << 20,
        ..EngineOptions::default()
    };
    remount(&mut bench, 3, little_memory);
    let times = read_in_turn(&bench, EXTENT);
    // 1 without reading ahead: here each extent is one step.
    assert!(times < 1.35, "each extent was decompressed {times} times");
}

/// A damaged extent is an error for its own reader, not for a reader before it.
#[test]
fn what_cannot_be_read_ahead_is_an_error_where_it_is_read() {
    let bench = reading_ahead(1, 16);
    let (address, _) = extents(&bench.inode(0))[9];
    let places = bench.mount().store().volume().map(address, 4096).unwrap();
    for place in places {
        bench.device.write_at(place.copies[0].offset, &[0xa5; 4096]).unwrap();
    }
    for index in (0..16).filter(|index| *index != 9) {
        read_head(&bench, index).unwrap();
        if index != 8 {
            read_tail(&bench, index);
        }
    }
    let damaged = read_head(&bench, 9).unwrap_err();
    assert!(
        matches!(damaged, Error::Store(StoreError::DataChecksum { .. })),
        "{damaged}"
    );
}
