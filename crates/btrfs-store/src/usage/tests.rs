//! Records of extents, part by part. Whole volumes: `crates/cowshed/tests/command`.

use std::collections::BTreeMap;

use super::*;
use crate::testing::Dice;

#[test]
fn extents_count_once_for_each_set_whatever_the_size_of_a_part() {
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        let mut sets = Sets::default();
        let ones: Vec<SetId> = (0..4).map(|n| sets.one(n)).collect();
        // An extent's size follows from its address.
        let size = |addr: u64| (addr % 7 + 1) * 4096;
        let mut seen = Vec::new();
        for _ in 0..dice.below(3000) {
            let addr = dice.below(500);
            seen.push(Record {
                addr,
                value: size(addr),
                set: ones[dice.below(4) as usize],
            });
        }
        let mut expected = BTreeMap::<u64, SetId>::new();
        for record in &seen {
            let set = expected.entry(record.addr).or_insert(record.set);
            *set = sets.union([*set, record.set].into_iter());
        }
        let mut expected_sums = Vec::new();
        for (addr, set) in expected {
            add(&mut expected_sums, set, size(addr));
        }
        for records_max in [2, 10, 100, 10_000] {
            let (mut sums, mut parts) = (Vec::new(), 1);
            let mut extents = Extents::new(records_max);
            loop {
                for record in &seen {
                    extents.add(*record, &mut sets).unwrap();
                    assert!(extents.records.len() <= records_max);
                }
                if extents.finish_part(&mut sets, &mut sums).unwrap() {
                    break;
                }
                parts += 1;
                assert!(parts <= 1000, "each part takes some");
            }
            assert_eq!(
                sums, expected_sums,
                "seed {seed}, {records_max} at a time, {parts} parts"
            );
        }
    }
}

/// Many snapshots share many blocks: what is found of a block comes in any order, and the sets on
/// the way to the one that all of them are must not be kept.
#[test]
fn sets_are_as_many_as_addresses_not_as_records() {
    const SUBVOLUMES: u32 = 1000;
    const ADDRESSES: u64 = 500;
    let (mut dice, mut sets) = (Dice::new(1), Sets::default());
    let ones: Vec<SetId> = (0..SUBVOLUMES).map(|n| sets.one(n)).collect();
    let mut addresses: Vec<u64> = (0..ADDRESSES).collect();
    let mut records = Vec::new();
    for set in ones {
        for at in (1..addresses.len()).rev() {
            addresses.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let found = addresses.iter().map(|addr| Record {
            addr: *addr,
            value: 1,
            set,
        });
        records.extend(found);
    }
    merge(&mut records, &mut sets).unwrap();
    assert_eq!(records.len(), ADDRESSES as usize);
    for record in &records {
        assert!(sets.ranges(record.set).eq(std::iter::once(0..SUBVOLUMES as usize)));
    }
    let bound = 2 * SUBVOLUMES as usize + ADDRESSES as usize;
    assert!(sets.len() <= bound, "{} sets", sets.len());
}

/// Sizes of extents come from the volume.
#[test]
fn sums_end_at_the_highest_number() {
    let mut sets = Sets::default();
    let set = sets.one(0);
    let mut sums = Sums::default();
    for _ in 0..2 {
        add(&mut sums.data, set, u64::MAX - 1);
        add(&mut sums.metadata, set, 1);
    }
    assert_eq!((&sums.data[..], &sums.metadata[..]), (&[u64::MAX][..], &[2][..]));
    let two = sets.one(1);
    let other = sets.union([set, two].into_iter());
    add(&mut sums.data, other, 10);
    let all = distribute(&sums, &sets, 2);
    assert_eq!((all[0].data_bytes, all[0].data_exclusive_bytes), (u64::MAX, u64::MAX));
    assert_eq!((all[1].data_bytes, all[1].data_exclusive_bytes), (10, 0));
    assert_eq!((all[0].metadata_bytes, all[1].metadata_bytes), (2, 0));
}

#[test]
fn extent_with_two_sizes_is_a_contradiction() {
    let mut sets = Sets::default();
    let set = sets.one(0);
    let record = |value| Record { addr: 7, value, set };
    let mut records = vec![record(4096), record(8192)];
    let error = merge(&mut records, &mut sets).unwrap_err();
    assert!(error.to_string().contains("what lies at 7"), "{error}");
}
