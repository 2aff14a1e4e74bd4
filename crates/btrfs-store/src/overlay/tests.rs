use std::collections::BTreeMap;

use btrfs_format::{Key, KeyType, ObjectId};

use super::*;

/// The next number of a xorshift generator, below `end`.
fn below(x: &mut u64, end: u64) -> u64 {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    *x % end
}

fn key(n: u64) -> Key {
    Key::new(ObjectId(n >> 5), KeyType((n >> 3 & 3) as u8), n & 7)
}

fn edit(x: &mut u64) -> Edit {
    let n = below(x, 5);
    (n > 0).then(|| ItemBytes::from(vec![n as u8; n as usize]))
}

/// What an overlay must be: a map.
#[derive(Default)]
struct Both {
    overlay: Overlay,
    map: BTreeMap<Key, Edit>,
}

impl Both {
    fn insert(&mut self, key: Key, edit: Edit) {
        let before = self.map.insert(key, edit.clone());
        assert_eq!(self.overlay.insert(key, edit), before, "{key}");
    }

    fn insert_run(&mut self, run: Vec<(Key, Edit)>) {
        let mut told = Vec::new();
        self.overlay
            .insert_run(run.clone(), |key, before| told.push((*key, before)));
        told.sort_by_key(|(key, _)| *key);
        let expected: Vec<_> = run
            .into_iter()
            .map(|(key, edit)| (key, self.map.insert(key, edit)))
            .collect();
        assert_eq!(told, expected);
    }

    fn check(&self, x: &mut u64, keys: u64) {
        assert_eq!(self.overlay.len(), self.map.len());
        assert!(self.overlay.iter().eq(self.map.iter()));
        for _ in 0..20 {
            let (a, b) = (below(x, keys), below(x, keys));
            let (from, to) = (key(a.min(b)), key(a.max(b)));
            assert_eq!(self.overlay.get(&from), self.map.get(&from));
            assert_eq!(self.overlay.floor(&to), self.map.range(..=to).next_back());
            assert!(self.overlay.range(from..=to).eq(self.map.range(from..=to)));
            assert!(self.overlay.range(from..to).eq(self.map.range(from..to)));
            assert!(self.overlay.range(from..).eq(self.map.range(from..)));
            assert!(self.overlay.range(..=to).rev().eq(self.map.range(..=to).rev()));
            let above = (Bound::Excluded(from), Bound::Unbounded);
            assert!(self.overlay.range(above).eq(self.map.range(above)));
        }
        let chunks = || self.overlay.order.values().map(|n| &self.overlay.chunks[*n as usize]);
        assert!(self.overlay.order.keys().eq(chunks().map(|chunk| &chunk.low)));
        let mut next = Key::MIN;
        for chunk in chunks() {
            let len = chunk.entries.len();
            assert!((1..=CHUNK_ENTRIES_MAX).contains(&len), "{len}");
            assert_eq!(chunk.low, next, "chunks leave no gap");
            assert!(chunk.entries.iter().all(|(key, _)| chunk.covers(key)));
            next = chunk.high;
        }
        assert!(self.map.is_empty() || next == Key::MAX);
    }
}

#[test]
fn overlay_is_a_map() {
    for seed in 1..60_u64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let keys = [40, 500, 20_000][seed as usize % 3];
        let mut both = Both::default();
        for _ in 0..30 {
            match below(&mut x, 4) {
                0 => (0..below(&mut x, 300)).for_each(|_| {
                    let at = key(below(&mut x, keys));
                    let edit = edit(&mut x);
                    both.insert(at, edit);
                }),
                1 => {
                    let (from, step) = (below(&mut x, keys), 1 + below(&mut x, 3));
                    let run = (0..below(&mut x, 400)).map(|n| (key(from + n * step), edit(&mut x)));
                    both.insert_run(run.collect());
                }
                // Ascending and descending, one by one.
                direction => {
                    let from = below(&mut x, keys);
                    for n in 0..below(&mut x, 200) {
                        let at = if direction == 2 {
                            from + n
                        } else {
                            from.saturating_sub(n)
                        };
                        let edit = edit(&mut x);
                        both.insert(key(at), edit);
                    }
                }
            }
            both.check(&mut x, keys);
        }
    }
}

#[test]
fn what_ascends_fills_its_chunks() {
    let (mut one_by_one, mut run) = (Overlay::default(), Overlay::default());
    (0..10_000).for_each(|n| drop(one_by_one.insert(key(n), None)));
    run.insert_run((0..10_000).map(|n| (key(n), None)).collect(), |_, _| {});
    for overlay in [one_by_one, run] {
        assert_eq!(overlay.chunks.len(), 10_000_usize.div_ceil(CHUNK_ENTRIES_MAX));
    }
}

#[test]
fn what_descends_into_a_gap_shares_chunks() {
    const FULL: u64 = CHUNK_ENTRIES_MAX as u64;
    let mut both = Both::default();
    let descending = (1_000..100_000).rev();
    for (count, n) in (0..FULL).chain(descending).enumerate() {
        both.insert(key(n), None);
        if count % 1000 == 0 {
            both.check(&mut 7, 100_000);
        }
    }
    let (chunks, len) = (both.overlay.chunks.len(), both.overlay.len());
    assert!(
        chunks <= 2 * len / CHUNK_ENTRIES_MAX + 2,
        "{chunks} chunks for {len} entries"
    );
    both.check(&mut 7, 100_000);
}

#[test]
fn packed_items_are_what_was_added() {
    let mut packer = Packer::default();
    let ranges = [packer.add(&[b"one"]), packer.add(&[]), packer.add(&[b"tw", b"o"])];
    packer.item_mut(ranges[2].clone())[0] = b'T';
    let packed = packer.finish();
    let items = ranges.map(|range| packed.item(range));
    assert_eq!(items.each_ref().map(|item| &item[..]), [&b"one"[..], b"", b"Two"]);
    assert_eq!(items[0], ItemBytes::from(&b"one"[..]));
}

#[test]
fn items_beside_others_are_what_was_put_together() {
    let wanted = |n: u32| vec![n as u8; (n * n % 700) as usize];
    let made = |n: u32| {
        let (whole, half) = (wanted(n), n as usize % 3);
        let (first, second) = whole.split_at(half.min(whole.len()));
        ItemBytes::beside_others(&[first, second])
    };
    // More than one buffer, one item that is longer than a buffer, and others after it.
    let mut items: Vec<(u32, ItemBytes)> = (0..200).map(|n| (n, made(n))).collect();
    let long = ItemBytes::beside_others(&[&[1; 100_000]]);
    items.extend((200..300).map(|n| (n, made(n))));
    items.retain(|(n, _)| n % 7 != 0);
    items.extend((300..400).map(|n| (n, made(n))));
    assert_eq!(long[..], [1; 100_000]);
    for (n, item) in items {
        assert_eq!(item[..], wanted(n), "{n}");
    }
}
