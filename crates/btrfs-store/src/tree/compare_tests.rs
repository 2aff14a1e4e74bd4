//! Comparing and searching trees, against maps of what they hold.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::{Generation, Key, TreeId};

use super::Tree;
use super::compare::{Difference, Generations, compare, search};
use super::tests::{Fixture, key, random_edits};
use crate::testing::Dice;

type Map = BTreeMap<Key, Vec<u8>>;
/// A key, and what the old and the new tree have.
type Differing = (Key, Option<Vec<u8>>, Option<Vec<u8>>);

fn differences(old: Option<&Tree>, new: &Tree, range: (Key, Key)) -> Vec<Differing> {
    let mut found = Vec::new();
    let flow = compare::<(), crate::error::Error>(old, new, range, |Difference { key, old, new }| {
        found.push((key, old.map(|i| i.to_vec()), new.map(|i| i.to_vec())));
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!(flow.unwrap(), ControlFlow::Continue(()));
    found
}

fn differences_of_maps(old: &Map, new: &Map, (from, to): (Key, Key)) -> Vec<Differing> {
    let keys: std::collections::BTreeSet<&Key> = old.keys().chain(new.keys()).collect();
    let keys = keys.into_iter().filter(|key| (from..=to).contains(key));
    keys.filter(|key| old.get(key) != new.get(key))
        .map(|key| (*key, old.get(key).cloned(), new.get(key).cloned()))
        .collect()
}

/// A fixture with `rounds` of random edits, and what its tree was before the last ones.
fn grown(dice: &mut Dice, span: u64, rounds: u64, last: u64) -> (Fixture, Arc<Tree>, Map) {
    let mut fixture = Fixture::new();
    let mut before = (fixture.tree.clone(), Map::new());
    for round in 0..rounds {
        if round + last == rounds {
            let root = fixture.tree.root();
            let old = Tree::new(TreeId::FS, fixture.store.clone(), root);
            before = (Arc::new(old), fixture.model.clone());
        }
        fixture.host.transid = fixture.host.transid.next();
        fixture.apply(&random_edits(dice, span, if round % 12 < 9 { 20 } else { 70 }));
        fixture.merge();
    }
    (fixture, before.0, before.1)
}

#[test]
fn differences_of_random_trees_are_those_of_maps() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let span = [100, 3000, 20_000][(seed % 3) as usize];
        let (rounds, last) = (2 + dice.below(30), 1 + dice.below(2));
        let (fixture, old, before) = grown(&mut dice, span, rounds, last);
        let whole = (Key::MIN, Key::MAX);
        let expected = differences_of_maps(&before, &fixture.model, whole);
        assert_eq!(differences(Some(&old), &fixture.tree, whole), expected, "seed {seed}");
        assert!(differences(Some(&fixture.tree), &fixture.tree, whole).is_empty());
        let all = differences_of_maps(&Map::new(), &fixture.model, whole);
        assert_eq!(
            differences(None, &fixture.tree, whole),
            all,
            "seed {seed}, without an old tree"
        );
        for _ in 0..20 {
            let (a, b) = (dice.below(span), dice.below(span));
            let range = (key(a.min(b)), key(a.max(b)));
            let expected = differences_of_maps(&before, &fixture.model, range);
            assert_eq!(differences(Some(&old), &fixture.tree, range), expected, "seed {seed}");
        }
    }
}

/// The blocks that both have are taken away: reading one of them would fail.
#[test]
fn shared_blocks_are_not_read() {
    let mut fixture = Fixture::new();
    fixture.apply(&(0..200_000).map(|n| (key(n), Some(vec![7; 50]))).collect());
    fixture.merge();
    let old = Tree::new(TreeId::FS, fixture.store.clone(), fixture.tree.root());
    let old_blocks = fixture.host.live.clone();
    fixture.host.transid = fixture.host.transid.next();
    fixture.apply(&BTreeMap::from([
        (key(77_777), Some(vec![8; 50])),
        (key(150_000), None),
    ]));
    fixture.merge();
    let mut shared = 0;
    for addr in old_blocks.intersection(&fixture.host.live) {
        fixture.store.forget(btrfs_format::LogicalAddr(*addr));
        shared += 1;
    }
    assert!(shared > 3000, "{shared} blocks are shared");
    let found = differences(Some(&old), &fixture.tree, (Key::MIN, Key::MAX));
    let expected = [
        (key(77_777), Some(vec![7; 50]), Some(vec![8; 50])),
        (key(150_000), Some(vec![7; 50]), None),
    ];
    assert_eq!(found, expected);
}

#[test]
fn visitor_ends_a_comparison() {
    let mut fixture = Fixture::new();
    fixture.apply(&(0..5000).map(|n| (key(n), Some(vec![7; 50]))).collect());
    fixture.merge();
    let mut seen = 0;
    let flow = compare::<_, crate::error::Error>(None, &fixture.tree, (key(10), Key::MAX), |found| {
        seen += 1;
        Ok(match found.key == key(14) {
            true => ControlFlow::Break(found.key),
            false => ControlFlow::Continue(()),
        })
    });
    assert_eq!((flow.unwrap(), seen), (ControlFlow::Break(key(14)), 5));
}

type Shown = Vec<(Key, Vec<u8>, Generation)>;

/// What a search shows. Pending items are of the transaction after the fixture's last merge.
fn searched(fixture: &Fixture, range: (Key, Key), since: Generation, until: Generation) -> Shown {
    let running = fixture.host.transid.next();
    let generations = Generations { since, until, running };
    let mut found = Vec::new();
    let flow = search::<()>(&fixture.tree, range, &generations, |key, bytes, generation| {
        found.push((key, bytes.to_vec(), generation));
        ControlFlow::Continue(())
    });
    assert_eq!(flow.unwrap(), ControlFlow::Continue(()));
    found
}

#[test]
fn search_shows_what_is_pending() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let span = [100, 3000, 20_000][(seed % 3) as usize];
        let rounds = dice.below(6);
        let (mut fixture, _, _) = grown(&mut dice, span, rounds, 1);
        let committed = fixture.host.transid;
        let edits = random_edits(&mut dice, span, 30);
        fixture.apply(&edits);
        let (all, none) = (Generation(u64::MAX), Generation(0));
        for round in 0..10 {
            let (a, b) = (dice.below(span), dice.below(span));
            let range = match round {
                0 => (Key::MIN, Key::MAX),
                _ => (key(a.min(b)), key(a.max(b))),
            };
            let items = |shown: Shown| {
                shown
                    .into_iter()
                    .map(|(key, bytes, _)| (key, bytes))
                    .collect::<Vec<_>>()
            };
            let expected = fixture.model.range(range.0..=range.1);
            let expected: Vec<_> = expected.map(|(key, bytes)| (*key, bytes.clone())).collect();
            assert_eq!(items(searched(&fixture, range, none, all)), expected, "seed {seed}");
            // Of the running transaction: exactly what is pending.
            let pending = edits.range(range.0..=range.1);
            let pending: Vec<_> = pending.filter_map(|(key, edit)| Some((*key, edit.clone()?))).collect();
            assert_eq!(
                items(searched(&fixture, range, committed.next(), all)),
                pending,
                "seed {seed}"
            );
            // Of those before: what is neither put nor deleted.
            let untouched = expected.into_iter().filter(|(key, _)| !edits.contains_key(key));
            let untouched: Vec<_> = untouched.collect();
            assert_eq!(
                items(searched(&fixture, range, none, committed)),
                untouched,
                "seed {seed}"
            );
        }
    }
}

#[test]
fn search_shows_the_leaves_of_the_transactions_asked_for() {
    let mut fixture = Fixture::new();
    fixture.apply(&(0..20_000).map(|n| (key(n), Some(vec![7; 50]))).collect());
    fixture.merge();
    let first = fixture.host.transid;
    let second = first.next();
    fixture.host.transid = second;
    fixture.apply(&BTreeMap::from([(key(9000), Some(vec![8; 50]))]));
    fixture.merge();
    let found = |range, (since, until)| searched(&fixture, range, since, until);
    let whole = (Key::MIN, Key::MAX);
    let of_second = found(whole, (second, Generation(u64::MAX)));
    assert!(of_second.contains(&(key(9000), vec![8; 50], second)));
    assert!(of_second.len() < 100, "{} items lie in one leaf", of_second.len());
    let of_first = found(whole, (Generation(0), first));
    assert_eq!(of_first.len() + of_second.len(), 20_000);
    assert_eq!(
        found((key(9000), key(9001)), (Generation(0), second)),
        [(key(9000), vec![8; 50], second), (key(9001), vec![7; 50], second)]
    );
}
