//! The table, and the share of its roads that every test run takes.

use std::collections::BTreeSet;

use cowshed_harness::need;
use cowshed_logcases::random::known;
use cowshed_logcases::roads::{self, Side};
use cowshed_logcases::{Answer, Case, doc, expect, table};
use cowshed_model::script::Op;

/// Another one of so many shares of the cases is judged each day; `cargo xtask ci` runs all
/// besides.
const SHARES: usize = 5;

/// Our fsyncs write logs.
const TREE_LOG: bool = true;
const PAGE: &str = include_str!("../../../docs/design/log-cases.md");

#[test]
fn each_line_of_the_table_prints_as_what_it_is_read_from() {
    for case in table::all() {
        for op in case.ops().unwrap() {
            assert_eq!(Op::parse(&op.to_string()).unwrap(), op, "{}", case.name);
        }
    }
}

#[test]
fn the_page_holds_the_tables() {
    for (begin, end, table, option) in [
        (doc::BEGIN, doc::END, doc::table(), "--doc"),
        (known::BEGIN, known::END, known::table(), "--doc-deviations"),
    ] {
        let part = doc::part(PAGE, begin, end).expect("the page has the marks");
        assert!(
            part == table,
            "docs/design/log-cases.md is not what `cargo run -p cowshed-logcases -- {option}` prints"
        );
    }
}

#[test]
fn cases_are_well_formed() {
    let mut names = BTreeSet::new();
    for case in table::all() {
        assert!(names.insert(case.name), "two cases are called {}", case.name);
        let ops = case.ops().unwrap_or_else(|e| panic!("{}: {e:#}", case.name));
        let setup = case.setup_len().unwrap();
        assert!(setup > 0 && ops.len() > setup, "{} does nothing", case.name);
        expect::is_understood(case.expect).unwrap_or_else(|e| panic!("{}: {e:#}", case.name));
        expect::is_understood(case.linux).unwrap_or_else(|e| panic!("{}: {e:#}", case.name));
    }
    assert!(names.len() >= 200, "{} cases", names.len());
}

fn share(of: &str) -> impl Iterator<Item = Case> {
    let at = need::share_seed(of) as usize % SHARES;
    table::all().skip(at).step_by(SHARES)
}

fn run(cases: impl Iterator<Item = Case>, nodesize_bytes: u32, writers: &[Side], replayers: &[Side]) -> usize {
    let base = roads::base(nodesize_bytes).unwrap();
    let mut logs = 0;
    for case in cases {
        match roads::run(&case, &base, TREE_LOG, writers, replayers) {
            Ok(report) => logs += report.logged.len(),
            Err(error) => panic!("{error:#}\nscript: {}", case.script),
        }
    }
    logs
}

#[test]
fn what_we_write_we_replay() {
    // The setup of those with a subvolume is the kernel's.
    for nodesize in [4096, 16384] {
        let ours = table::all().filter(|case| !case.script.contains("subvolume"));
        run(ours, nodesize, &[Side::Cowshed], &[Side::Cowshed]);
    }
}

/// A case says whether our fsync is a log: if all were commits, every state would be right, and no
/// log tried.
#[test]
fn a_commit_instead_of_a_log_is_found() {
    let base = roads::base(16384).unwrap();
    let case = table::all().find(|case| case.name == "new_file").unwrap();
    for (ours, said) in [
        (Answer::Log, None),
        (Answer::Commit, Some("log, not commit")),
        (Answer::Nothing, Some("log, not nothing")),
    ] {
        let case = Case { ours, ..case };
        let found = roads::run(&case, &base, TREE_LOG, &[Side::Cowshed], &[Side::Cowshed]);
        let found = found.map_err(|error| format!("{error:#}"));
        match said {
            None => assert_eq!(found.unwrap().ours, Some(Answer::Log)),
            Some(said) => assert!(found.unwrap_err().contains(said)),
        }
    }
    let (crash, answer) = roads::we_write(&base, &case, !TREE_LOG).unwrap();
    assert_eq!((crash.has_log, answer), (false, Answer::Commit));
}

#[test]
fn what_we_write_the_kernel_replays() {
    if need::kernel_btrfs().is_some() {
        let share = share("cases that we write and the kernel replays");
        run(share, 16384, &[Side::Cowshed], &[Side::Kernel, Side::Cowshed]);
    }
}

#[test]
fn what_the_kernel_writes_it_and_we_replay() {
    if need::kernel_btrfs().is_some() {
        let share = share("cases that the kernel writes");
        let logs = run(share, 16384, &[Side::Kernel], &[Side::Kernel, Side::Cowshed]);
        assert!(logs > 20, "the kernel hardly ever writes a log: {logs}");
    }
}

/// On volumes of before 2021 holes have items of their own, in logs, too; of small leaves one file
/// fills several.
#[test]
fn holes_that_have_items_are_replayed() {
    if need::kernel_btrfs().is_some() {
        let base = roads::base_with_hole_items(4096).unwrap();
        let both = [Side::Kernel, Side::Cowshed];
        for name in [
            "many_extents",
            "many_extents_twice",
            "sparse",
            "hole_filled",
            "punch_what_was_logged",
        ] {
            let case = table::all().find(|case| case.name == name).unwrap();
            let report = roads::run(&case, &base, TREE_LOG, &both, &both).unwrap_or_else(|e| panic!("{e:#}"));
            assert!(report.logged.contains(&Side::Kernel), "{name}: the kernel wrote no log");
        }
    }
}

/// The judge's own test: states that a case does not allow are found.
#[test]
fn what_must_not_be_is_found() {
    use cowshed_model::tree::{Node, Tree};
    let file = |content: &[u8]| Node {
        nlink: 1,
        content: content.to_vec().into(),
        ..Node::default()
    };
    let tree = |files: &[(&str, &[u8])]| -> Tree {
        let root = (String::new(), Node::default());
        let rest = files.iter().map(|(path, content)| ((*path).to_owned(), file(content)));
        std::iter::once(root).chain(rest).collect()
    };
    let either: &[&str] = &["f = a2; !t", "f = b2 | -; ?t = a1"];
    for good in [
        tree(&[("f", b"aa")]),
        tree(&[("f", b"bb"), ("t", b"a")]),
        tree(&[("f", b"")]),
    ] {
        expect::check(either, &good).unwrap();
    }
    for bad in [
        tree(&[]),
        tree(&[("f", b"ab")]),
        tree(&[("f", b"aa"), ("t", b"a")]),
        tree(&[("f", b"bb"), ("t", b"b")]),
        tree(&[("f", b"aa"), ("g", b"")]),
    ] {
        assert!(expect::check(either, &bad).is_err(), "{}", expect::describe(&bad));
    }
    for (line, why) in [
        ("one f g", "both are there"),
        ("f links 2; g", "one name"),
        ("f mode 600; g", "mode 0"),
        ("f x user.a=1; g", "none"),
        ("f == g", "two files"),
        ("f/; g", "no directory"),
        ("f* count 2; g", "one name"),
        ("?f -> g; g", "no link"),
    ] {
        let found = expect::check(&[line], &tree(&[("f", b""), ("g", b"a")]));
        // Inode numbers are all 0 here, so one file has both names.
        assert!(found.is_err() != line.contains("=="), "{line}: {why}");
    }
}
