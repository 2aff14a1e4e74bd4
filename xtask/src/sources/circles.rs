//! Circles of a graph: sets of nodes that all reach each other.

use std::collections::{BTreeMap, BTreeSet};

/// The circles among the arrows, each as its nodes in order; an arrow from a node to itself is
/// none.
pub fn circles<'a>(arrows: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows {
        next.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|from| (*from, reach(from, &next))).collect();
    let both = |a: &str, b: &str| {
        let reaches = |a: &str, b: &str| reached.get(a).is_some_and(|set| set.contains(b));
        a != b && reaches(a, b) && reaches(b, a)
    };
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for node in next.keys() {
        let circle: Vec<String> = next
            .keys()
            .filter(|other| *other == node || both(node, other))
            .map(|n| (*n).to_owned())
            .collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn reach<'a>(from: &'a str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(node) = todo.pop() {
        for to in next.get(node).into_iter().flatten() {
            if seen.insert(*to) {
                todo.push(to);
            }
        }
    }
    seen
}
