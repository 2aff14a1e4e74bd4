use super::*;

const FILE: NodeId = NodeId(7);

fn page() -> u64 {
    crate::sys::page_bytes() as u64
}

fn of_pages(pages: Range<u64>) -> Range<u64> {
    pages.start * page()..pages.end * page()
}

/// A direct write of this range, nothing of which the kernel is told to forget in between.
fn write(pages: &Pages, range: Range<u64>) -> Stale {
    pages.begin_write(FILE);
    pages.applied(FILE, range)
}

/// Tracked, with nothing filled and nothing told.
fn clean() -> Pages {
    let pages = Pages::default();
    let Stale::Attributes(told) = write(&pages, 0..1) else {
        panic!("the first write makes the kernel ask for attributes again");
    };
    pages.attributes_forgotten(FILE, told);
    assert_eq!(write(&pages, 0..1), Stale::Nothing);
    pages
}

#[test]
fn direct_writes_alone_make_nothing_stale() {
    let pages = clean();
    pages.fill(NodeId(8), 0..1 << 20);
    assert_eq!(write(&pages, 0..1 << 20), Stale::Nothing, "another file");
}

#[test]
fn what_was_filled_before_the_file_was_tracked_is_unknown() {
    let pages = Pages::default();
    pages.fill(FILE, of_pages(0..1));
    let stale = write(&pages, 1 << 20..1 << 21);
    let Stale::Content(range, told) = stale else {
        panic!("{stale:?}");
    };
    assert_eq!(range, WHOLE);
    assert_eq!(
        write(&pages, of_pages(0..1)),
        Stale::Content(of_pages(0..1), told),
        "it is being dropped"
    );
    pages.dropped(FILE, &of_pages(0..1), told);
    pages.dropped(FILE, &WHOLE, told);
    assert_eq!(write(&pages, of_pages(0..1)), Stale::Nothing);
}

#[test]
fn a_filled_range_is_stale_until_it_was_dropped() {
    let pages = clean();
    pages.fill(FILE, of_pages(2..4));
    assert_eq!(write(&pages, of_pages(0..2)), Stale::Nothing);
    assert_eq!(write(&pages, 0..2 * page() + 1), Stale::Content(of_pages(0..3), 1));
    // A second write of the range does not rely on the first one's drop, which is not done yet.
    assert_eq!(
        write(&pages, 2 * page()..2 * page() + 1),
        Stale::Content(of_pages(2..3), 1)
    );
    pages.dropped(FILE, &of_pages(2..3), 1);
    assert_eq!(
        write(&pages, 2 * page()..2 * page() + 1),
        Stale::Content(of_pages(2..3), 1)
    );
    pages.dropped(FILE, &of_pages(0..3), 1);
    pages.dropped(FILE, &of_pages(2..3), 1);
    assert_eq!(write(&pages, 2 * page()..2 * page() + 1), Stale::Nothing);
    assert_eq!(
        write(&pages, 3 * page()..3 * page() + 1),
        Stale::Content(of_pages(3..4), 1)
    );
}

#[test]
fn a_fill_during_a_drop_counts() {
    let pages = clean();
    pages.fill(FILE, of_pages(0..1));
    assert_eq!(write(&pages, of_pages(0..1)), Stale::Content(of_pages(0..1), 1));
    pages.fill(FILE, of_pages(0..1));
    pages.dropped(FILE, &of_pages(0..1), 1);
    assert_eq!(write(&pages, of_pages(0..1)), Stale::Content(of_pages(0..1), 1));
}

#[test]
fn attributes_that_were_told_are_forgotten_once() {
    let pages = clean();
    pages.tell_attributes(FILE);
    assert_eq!(write(&pages, 0..1), Stale::Attributes(2));
    assert_eq!(write(&pages, 0..1), Stale::Attributes(2), "not forgotten yet");
    pages.tell_attributes(FILE);
    pages.attributes_forgotten(FILE, 2);
    assert_eq!(write(&pages, 0..1), Stale::Attributes(3), "told meanwhile");
    pages.attributes_forgotten(FILE, 3);
    assert_eq!(write(&pages, 0..1), Stale::Nothing);
}

#[test]
fn the_number_of_tracked_files_is_bounded() {
    let pages = Pages::default();
    assert!(!pages.is_tracked(FILE));
    pages.begin_write(FILE);
    assert!(pages.is_tracked(FILE));
    for n in 1..=20 * (SHARDS * TRACKED_PER_SHARD) as u64 {
        pages.begin_write(NodeId(100 + n));
    }
    assert!(pages.shards.iter().all(|shard| {
        let count = shard.files.lock().len();
        count <= TRACKED_PER_SHARD && count == shard.tracked.load(SeqCst)
    }));
    assert!(!pages.is_tracked(FILE), "the oldest was given up");
    assert_eq!(pages.applied(FILE, 5..6), Stale::Content(5..6, 0), "during a write");
    pages.dropped(FILE, &(5..6), 0);
}
