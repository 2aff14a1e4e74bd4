//! Logs that are not replayed: every refusal, damaged blocks, and logs with a byte changed.

use super::*;

/// Logs that are refused, with what is said about them.
fn refused(base: &Base) -> Vec<(&'static str, Vec<Item>)> {
    let old = || inode(OLD, FILE_MODE, 1, 1);
    vec![
        ("changed its type", vec![inode(OLD, DIR_MODE, 1, 1)]),
        ("has names and does not exist", vec![inode_ref(999, ROOT, &[(9, "n")])]),
        ("has names and does not exist", vec![extref(999, ROOT, 9, "n")]),
        ("which is no directory", vec![old(), inode_ref(OLD, X, &[(9, "n")])]),
        ("impossible name", vec![old(), inode_ref(OLD, ROOT, &[(9, "..")])]),
        ("impossible name", vec![old(), extref(OLD, ROOT, 9, ".")]),
        (
            "the root directory has a name",
            vec![inode(ROOT, DIR_MODE, 1, 1), inode_ref(ROOT, SUB, &[(9, "n")])],
        ),
        (
            "the root directory has a name",
            vec![inode(ROOT, DIR_MODE, 1, 1), extref(ROOT, ROOT, 9, "n")],
        ),
        (
            "the root directory has a name",
            vec![inode(SUB, DIR_MODE, 1, 1), dir_index(SUB, 9, "n", ROOT)],
        ),
        (
            "lies below itself",
            vec![inode(SUB, DIR_MODE, 1, 1), inode_ref(SUB, SUB, &[(9, "n")])],
        ),
        (
            "lies below itself",
            vec![
                inode(SUB, DIR_MODE, 1, 1),
                inode_ref(SUB, OTHER, &[(9, "n")]),
                inode(OTHER, DIR_MODE, 1, 1),
                inode_ref(OTHER, SUB, &[(9, "n")]),
            ],
        ),
        (
            "lies below itself",
            vec![
                inode(SUB, DIR_MODE, 1, 1),
                inode_ref(SUB, 300, &[(9, "n")]),
                inode(300, DIR_MODE, 1, 1),
                inode_ref(300, SUB, &[(9, "n")]),
            ],
        ),
        // New, and only the entry tells of its name.
        (
            "lies below itself",
            vec![inode(300, DIR_MODE, 1, 1), dir_index(300, 9, "n", 300)],
        ),
        ("beyond every limit", vec![inode(u64::MAX - 4000, FILE_MODE, 1, 1)]),
        ("impossible index", vec![old(), inode_ref(OLD, ROOT, &[(1, "n")])]),
        ("impossible index", vec![old(), inode_ref(OLD, ROOT, &[(1 << 63, "n")])]),
        ("impossible index", vec![old(), extref(OLD, ROOT, u64::MAX, "n")]),
        ("has extents and does not exist", vec![extent(999, 0, 0, 4096)]),
        (
            "has extents and is no file",
            vec![inode(OTHER, DIR_MODE, 1, 1), extent(OTHER, 0, 0, 4096)],
        ),
        // What is there has checksums: of the inode itself, of another; the log brings some.
        ("data has no checksums", vec![unsummed(X)]),
        (
            "data has no checksums",
            vec![unsummed(OLD), extent(OLD, 0, base.x_data.get(), 4096)],
        ),
        (
            "data has no checksums",
            vec![
                unsummed(OLD),
                extent(OLD, 0, base.data.get(), 4096),
                sum_of(base.data.get()),
            ],
        ),
        (
            "are free",
            vec![
                old(),
                extent(OLD, 0, base.x_data.get() + 4096, 1 << 20),
                extent(OLD, 1 << 20, base.x_data.get() + 8192, 4096),
            ],
        ),
        ("wrong type", vec![old(), extent(OLD, 0, base.in_use.get(), 4096)]),
        ("lies in no block group", vec![old(), extent(OLD, 0, 1 << 50, 4096)]),
        (
            "has 2 names",
            vec![
                inode(SUB, DIR_MODE, 1, 1),
                inode_ref(SUB, ROOT, &[(3, "sub")]),
                inode_ref(SUB, OTHER, &[(2, "moved")]),
            ],
        ),
    ]
}

/// What the checker can look at.
fn all_of_it() -> CheckOptions<'static> {
    CheckOptions {
        data_csums: true,
        ..CheckOptions::default()
    }
}

fn assert_refused(device: &Arc<dyn BlockDevice>, read_only: bool, part: &str) {
    let error = open(device, read_only, false)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    assert!(
        error.contains(part) && error.contains("nologreplay"),
        "{part:?} is not in {error:?}"
    );
    let mount = open(device, true, true).expect("without the log the volume opens");
    assert!(mount.store().volume().has_log(), "the log is still there");
}

#[test]
fn what_a_log_cannot_say_is_refused_and_the_disk_stays_as_it_was() {
    let base = Base::new();
    for (part, items) in refused(&base) {
        // The checker does not look at data that the log says nothing of.
        let is_found = items.len() > 1 || part != "data has no checksums";
        let device = base.crashed_with(items);
        let report = check(std::slice::from_ref(&device), &all_of_it());
        assert_ne!(report.is_clean(), is_found, "the checker, where {part:?}: {report}");
        assert_refused(&device, false, part);
    }
    let no_files = base.crashed(TreeId::EXTENT, &Items::new()).unwrap();
    assert_refused(&no_files, true, "holds no files");
    // A subvolume that is gone takes its log along.
    let gone = base
        .crashed(TreeId(300), &Items::from_iter([inode(OLD, DIR_MODE, 1, 1)]))
        .unwrap();
    open(&gone, false, false).unwrap().close().unwrap();
}

#[test]
fn a_damaged_block_of_the_log_is_found_before_anything_is_replayed() {
    let base = Base::new();
    let device = base.crashed_with(vec![inode(OLD, FILE_MODE, 1, 1)]);
    let volume = Volume::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    for copy in volume.map(base.log, NODESIZE.into()).unwrap()[0].copies.iter() {
        device.write_at(copy.offset + 8000, &[1]).unwrap();
    }
    drop(volume);
    assert_refused(&device, true, "bad checksum");
    assert_refused(&device, false, "bad checksum");
}

/// A log with a byte changed replays or is refused; it never panics.
#[test]
fn logs_with_a_byte_changed_do_no_harm() {
    let base = Base::new();
    let items: Items = [
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 2, 2),
        dir_index(ROOT, 20, "index", X),
        inode(OLD, FILE_MODE, 2, 1),
        inode_ref(OLD, ROOT, &[(22, "new"), (23, "newer")]),
        extref(OLD, OTHER, 5, "far"),
        extent(OLD, 0, 0, 8192),
        extent(OLD, 8192, base.data.get(), 4096),
        inode(SUB, DIR_MODE, 1, 0),
        inode_ref(SUB, OTHER, &[(2, "moved")]),
    ]
    .into_iter()
    .collect();
    let (mut replayed, mut refused) = (0, 0);
    let mut dice = Dice::new(1);
    for _ in 0..600 {
        let mut list: Vec<Item> = items.clone().into_iter().collect();
        let at = dice.below(list.len() as u64) as usize;
        let (key, bytes) = &mut list[at];
        match dice.below(6) {
            0 => key.offset ^= 1 << dice.below(64),
            1 => key.objectid = ObjectId(*[ROOT, OLD, SUB, X, OTHER, 999].get(dice.below(6) as usize).unwrap()),
            _ => {
                let byte = dice.below(bytes.len() as u64) as usize;
                bytes[byte] ^= 1 << dice.below(8);
            }
        }
        let Some(device) = base.crashed(TreeId::FS, &list.into_iter().collect()) else {
            continue;
        };
        let report = check(std::slice::from_ref(&device), &all_of_it());
        let opened = open(&device, false, false);
        match opened.and_then(|mount| mount.close()) {
            Ok(()) => replayed += 1,
            Err(error) if report.is_clean() => panic!("the checker finds no fault, but: {error}"),
            Err(_) => refused += 1,
        }
    }
    assert!(replayed > 50 && refused > 20, "{replayed} replayed, {refused} refused");
}
