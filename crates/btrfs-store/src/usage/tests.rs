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
            *set = sets.union(*set, record.set);
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

#[test]
fn extent_with_two_sizes_is_a_contradiction() {
    let mut sets = Sets::default();
    let set = sets.one(0);
    let record = |value| Record { addr: 7, value, set };
    let mut records = vec![record(4096), record(8192)];
    let error = merge(&mut records, &mut sets).unwrap_err();
    assert!(error.to_string().contains("what lies at 7"), "{error}");
}
