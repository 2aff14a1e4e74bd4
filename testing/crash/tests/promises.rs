//! The judge of promises, judged: each kind of lie is found, and what is allowed passes.

use cowshed_crash::promise::{History, Promise};
use cowshed_model::tree::{Node, Tree};
use cowshed_vfs::FileKind;

const ROOT: u64 = 256;
const BLOCK: usize = 4096;

fn dir(ino: u64) -> Node {
    Node {
        ino,
        kind: FileKind::Directory,
        nlink: 1,
        ..Node::default()
    }
}

fn file(ino: u64, content: &[u8]) -> Node {
    Node {
        ino,
        nlink: 1,
        size_bytes: content.len() as u64,
        content: content.to_vec().into(),
        ..Node::default()
    }
}

fn tree(entries: &[(&str, Node)]) -> Tree {
    let entries = entries.iter().map(|(path, node)| ((*path).to_owned(), node.clone()));
    std::iter::once((String::new(), dir(ROOT))).chain(entries).collect()
}

fn blocks(letters: &[u8]) -> Vec<u8> {
    letters.iter().flat_map(|letter| [*letter; BLOCK]).collect()
}

/// A run of these states; after some, an inode or (0) the volume was synced.
fn history(states: &[(Tree, Option<u64>)]) -> History {
    let mut history = History::new(&states[0].0);
    for (state, synced) in &states[1..] {
        let promise = synced.map(|ino| if ino == 0 { Promise::Volume } else { Promise::Inode(ino) });
        history.note(state, promise);
    }
    history
}

#[track_caller]
fn refused(history: &History, found: &Tree, done: usize, why: &str) {
    let error = history.check(found, done).expect_err("a lie passes");
    assert!(format!("{error:#}").contains(why), "{error:#}");
}

#[test]
fn a_synced_file_stays() {
    let made = tree(&[("f", file(257, b"one"))]);
    let run = history(&[(tree(&[]), None), (made.clone(), None), (made.clone(), Some(257))]);
    run.check(&made, 2).unwrap();
    run.check(&tree(&[]), 1).unwrap();
    refused(&run, &tree(&[]), 2, "inode 257 has the names None");
    refused(&run, &tree(&[("f", file(257, b"two"))]), 2, "unchanged since 2");
    refused(&run, &tree(&[("g", file(257, b"one"))]), 2, "in no state");
    refused(&run, &tree(&[("f", file(258, b"one"))]), 2, "in no state");
}

#[test]
fn a_file_may_be_missing_or_empty_until_it_is_synced() {
    let made = tree(&[("f", file(257, &blocks(b"ab")))]);
    let run = history(&[(tree(&[]), None), (made.clone(), None)]);
    for content in [&[][..], b"a", b"ab"] {
        run.check(&tree(&[("f", file(257, &blocks(content)))]), 1).unwrap();
    }
    run.check(&tree(&[]), 1).unwrap();
    refused(&run, &tree(&[("f", file(257, &blocks(b"b")))]), 1, "was never so");
    refused(&run, &tree(&[("f", file(257, &blocks(b"abc")))]), 1, "since its floor");
}

#[test]
fn blocks_are_of_versions_since_the_sync() {
    let with = |letters: &[u8]| tree(&[("f", file(257, &blocks(letters)))]);
    let run = history(&[
        (with(b"aa"), None),
        (with(b"bb"), None),
        (with(b"bb"), Some(257)),
        (with(b"cb"), None),
        (with(b"cd"), None),
    ]);
    for good in [b"bb", b"cb", b"bd", b"cd"] {
        run.check(&with(good), 4).unwrap();
    }
    for bad in [b"ab", b"ba", b"db"] {
        refused(&run, &with(bad), 4, "was never so");
    }
    refused(&run, &with(b"cdd"), 4, "since its floor");
    // The operation under way may have happened; later ones have not.
    run.check(&with(b"cb"), 2).unwrap();
    refused(&run, &with(b"cd"), 2, "was never so");
}

#[test]
fn a_rename_is_whole() {
    let (old, new) = (file(257, b"old"), file(258, b"new"));
    let before = tree(&[("f", old.clone()), ("t", new.clone())]);
    let after = tree(&[("f", new.clone())]);
    let run = history(&[
        (before.clone(), None),
        (before.clone(), Some(258)),
        (after.clone(), None),
    ]);
    run.check(&before, 2).unwrap();
    run.check(&after, 2).unwrap();
    refused(&run, &tree(&[("t", new.clone())]), 2, "in no state");
    refused(&run, &tree(&[("f", old)]), 2, "in no state");
    let twice = Node {
        nlink: 2,
        ..new.clone()
    };
    refused(&run, &tree(&[("f", twice.clone()), ("t", twice)]), 2, "in no state");
}

#[test]
fn a_synced_directory_keeps_its_names_where_it_moves() {
    let (f, g) = (file(259, b""), file(260, b""));
    let run = history(&[
        (tree(&[("d", dir(257)), ("d/f", f.clone())]), Some(0)),
        (tree(&[("d", dir(257)), ("d/g", g.clone())]), None),
        (tree(&[("d", dir(257)), ("d/g", g.clone())]), Some(257)),
        (tree(&[("e", dir(257)), ("e/g", g.clone())]), None),
    ]);
    for name in ["d", "e"] {
        let inner = format!("{name}/g");
        run.check(&tree(&[(name, dir(257)), (&inner, g.clone())]), 3).unwrap();
        refused(&run, &tree(&[(name, dir(257))]), 3, "g in directory 257");
        let both = format!("{name}/f");
        let found = tree(&[(name, dir(257)), (&inner, g.clone()), (&both, f.clone())]);
        refused(&run, &found, 3, "f in directory 257");
    }
}

#[test]
fn attributes_and_link_counts_are_of_some_state() {
    let plain = file(257, b"x");
    let mut tagged = plain.clone();
    tagged.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
    let mut private = tagged.clone();
    private.perm = 0o600;
    let states = [&plain, &tagged, &private].map(|node| (tree(&[("f", node.clone())]), None));
    let run = history(&states);
    for (state, _) in &states {
        run.check(state, 2).unwrap();
    }
    let mut odd = plain.clone();
    odd.perm = 0o777;
    refused(&run, &tree(&[("f", odd)]), 2, "mode or owner");
    let mut other = plain.clone();
    other.xattrs.insert(b"user.a".to_vec(), b"2".to_vec());
    refused(&run, &tree(&[("f", other)]), 2, "extended attributes");
    let counted = Node { nlink: 2, ..plain };
    refused(&run, &tree(&[("f", counted)]), 2, "link count 2");
}

/// Two files, and an atomic operation that changes both; then the first is written again.
fn atomic_run() -> (History, [Tree; 3]) {
    let pair = |one: &[u8], other: &[u8]| tree(&[("a", file(257, &blocks(one))), ("b", file(258, &blocks(other)))]);
    let states = [pair(b"aa", b"bb"), pair(b"xa", b"by"), pair(b"xz", b"by")];
    let mut run = history(&[
        (states[0].clone(), Some(0)),
        (states[0].clone(), Some(0)),
        (states[1].clone(), None),
        (states[2].clone(), None),
    ]);
    run.atomic(2, vec![257, 258]);
    (run, states)
}

#[test]
fn an_atomic_operation_is_there_whole_or_not_at_all() {
    let (run, states) = atomic_run();
    for state in &states {
        run.check(state, 3).unwrap();
    }
    let half = tree(&[("a", file(257, &blocks(b"xa"))), ("b", file(258, &blocks(b"bb")))]);
    refused(&run, &half, 3, "is there in part");
    // What came after it is there, and a part of it is not.
    let later = tree(&[("a", file(257, &blocks(b"az"))), ("b", file(258, &blocks(b"by")))]);
    refused(&run, &later, 3, "is there in part");
}

#[test]
fn an_atomic_operation_is_durable_in_all_files_or_in_none() {
    let (mut run, states) = atomic_run();
    run.promise(3, Some(Promise::Inode(257)));
    run.check(&states[2], 3).unwrap();
    // Synced in the first file, and not there in the second.
    let half = tree(&[("a", file(257, &blocks(b"xz"))), ("b", file(258, &blocks(b"bb")))]);
    refused(&run, &half, 3, "is there in part");
}

/// Of what was not synced Linux' logs may lack the half of a rename and data in the midst of a
/// file; what was synced is there.
#[test]
fn of_linux_less_is_asked() {
    let (f, g) = (file(257, &blocks(b"ab")), file(258, b"new"));
    let written = file(257, &blocks(b"abcd"));
    let twice = Node { nlink: 2, ..g.clone() };
    let run = history(&[
        (tree(&[("f", f.clone()), ("t", g.clone())]), Some(0)),
        (tree(&[("f", written.clone()), ("t", g.clone())]), None),
        (tree(&[("f", written.clone()), ("u", g.clone())]), None),
    ]);
    let refused_linux = |found: &Tree, why: &str| {
        let error = run.check_linux(found, 2).expect_err("a lie passes");
        assert!(format!("{error:#}").contains(why), "{error:#}");
    };
    let both = tree(&[("f", f.clone()), ("t", twice.clone()), ("u", twice)]);
    let hole = file(257, &[&blocks(b"ab")[..], &[0; BLOCK], &blocks(b"d")].concat());
    let with_hole = tree(&[("f", hole), ("t", g.clone())]);
    for weak in [&both, &with_hole] {
        run.check_linux(weak, 2).unwrap();
        run.check(weak, 2).expect_err("we promise more");
    }
    refused_linux(
        &tree(&[("f", file(257, &[0; 2 * BLOCK])), ("t", g.clone())]),
        "the block at 0 was never so",
    );
    refused_linux(&tree(&[("t", g.clone())]), "f in directory 256 leads to None");
    let miscounted = Node { nlink: 2, ..g };
    refused_linux(&tree(&[("f", f), ("t", miscounted)]), "1 names, link count 2");
}

/// A name that a rename replaced may be missing on Linux, and one that led to a synced file all the
/// time may not.
#[test]
fn of_linux_replaced_names_may_be_missing() {
    let (one, other, kept) = (file(257, b"one"), file(258, b"other"), file(259, b"kept"));
    let before = [("a", one.clone()), ("b", other.clone()), ("c", kept.clone())];
    let after = [("b", one.clone()), ("c", kept.clone())];
    let run = history(&[
        (tree(&before), Some(0)),
        (tree(&after), None),
        (tree(&after), Some(259)),
    ]);
    let lost = tree(&[("a", one), ("c", kept)]);
    run.check_linux(&lost, 2).unwrap();
    run.check(&lost, 2).expect_err("we promise more");
    run.check_linux(&tree(&[("b", other)]), 2).expect_err("c was synced");
}

#[test]
fn an_fdatasync_promises_all_but_times() {
    let at = |secs: i64, content: &[u8]| {
        let mut node = file(257, content);
        node.mtime.secs = secs;
        tree(&[("f", node)])
    };
    let mut run = history(&[
        (at(1, b"one"), Some(0)),
        (at(1, b"one"), Some(0)),
        (at(2, b"two"), None),
        (at(3, b"two"), None),
        (at(3, b"two"), None),
    ]);
    run.promise(4, Some(Promise::Data(257)));
    for secs in [1, 2, 3] {
        run.check(&at(secs, b"two"), 4).unwrap();
    }
    refused(&run, &at(3, b"one"), 4, "unchanged since 4");
    refused(&run, &tree(&[]), 4, "in no state");
    let mut other = at(3, b"two");
    other.get_mut("f").unwrap().perm = 0o600;
    refused(&run, &other, 4, "unchanged since 4");
    // What an fsync saw stays, whatever an fdatasync says after it.
    run.promise(3, Some(Promise::Inode(257)));
    run.check(&at(3, b"two"), 4).unwrap();
    refused(&run, &at(2, b"two"), 4, "unchanged since 4");
}

#[test]
fn a_temporary_file_that_was_synced_has_its_content_where_it_has_its_name() {
    let made = tree(&[("f", file(257, &blocks(b"ab")))]);
    let mut run = history(&[(tree(&[]), None), (made.clone(), None), (made.clone(), None)]);
    run.check(&tree(&[("f", file(257, b""))]), 2).unwrap();
    run.promise(1, Some(Promise::Content(257)));
    run.check(&made, 2).unwrap();
    run.check(&tree(&[]), 2).unwrap();
    for lost in [&b""[..], &blocks(b"a")] {
        refused(&run, &tree(&[("f", file(257, lost))]), 2, "since its floor");
    }
}

#[test]
fn a_promise_that_came_late_is_of_the_state_when_it_was_asked_for() {
    let with = |content: &[u8]| tree(&[("f", file(257, content))]);
    let mut run = history(&[(with(b"one"), None), (with(b"two"), None), (with(b"six"), None)]);
    assert_eq!(run.promise_late(1, Promise::Inode(257), false), 3);
    // Not known yet.
    run.check(&with(b"one"), 2).unwrap();
    for good in [b"two", b"six"] {
        run.check(&with(good), 3).unwrap();
    }
    refused(&run, &with(b"one"), 3, "was never so");
    // An older one that comes later takes nothing back.
    assert_eq!(run.promise_late(0, Promise::Inode(257), false), 4);
    refused(&run, &with(b"one"), 4, "was never so");
}

#[test]
fn what_is_under_way_may_be_there_while_a_promise_is_told() {
    let with = |one: &[u8], two: &[u8]| tree(&[("f", file(257, one)), ("g", file(258, two))]);
    let mut run = history(&[(with(b"one", b"one"), None), (with(b"two", b"two"), None)]);
    // Operations that change both files are under way; two syncs come back, and then the
    // operations.
    assert_eq!(run.promise_late(1, Promise::Inode(257), true), 2);
    assert_eq!(run.promise_late(1, Promise::Inode(258), true), 3);
    assert_eq!(run.note(&with(b"six", b"six"), None), 4);
    run.note(&with(b"ten", b"ten"), None);
    for done in 1..4 {
        for good in [with(b"two", b"six"), with(b"six", b"two"), with(b"six", b"six")] {
            run.check(&good, done).unwrap();
        }
        refused(&run, &with(b"ten", b"six"), done, "was never so");
    }
    run.check(&with(b"two", b"one"), 1).unwrap();
    run.check(&with(b"two", b"one"), 2).unwrap();
    refused(&run, &with(b"one", b"two"), 2, "was never so");
    refused(&run, &with(b"two", b"one"), 3, "was never so");
    run.check(&with(b"ten", b"six"), 4).unwrap();
}

#[test]
fn an_inode_is_unchanged_where_nothing_of_it_can_be_seen() {
    let with = |content: &[u8], secs: i64| {
        let mut node = file(257, content);
        node.mtime.secs = secs;
        tree(&[("f", node), ("g", file(258, b""))])
    };
    let states = [with(b"one", 1), with(b"one", 1), with(b"two", 1), with(b"two", 2)];
    let run = history(&states.map(|state| (state, None)));
    let unchanged: Vec<bool> = (1..4).map(|index| run.is_unchanged(257, index)).collect();
    assert_eq!(unchanged, [true, false, false]);
    assert!((1..4).all(|index| run.is_unchanged(258, index)));
}
