//! Logs as kernels before 5.17 wrote them: each entry of a directory twice, by hash (`DIR_ITEM`)
//! and by index, and both kinds of ranges (`DIR_LOG_ITEM`, `DIR_LOG_INDEX`). The commit that ended
//! it says that either form leads to the same.

use super::*;

/// Names of the root directory in the last commit, by index.
const COMMITTED: [(u64, &str); 3] = [(2, "old"), (3, "sub"), (4, "other")];
const NEW: u64 = 300;
const NEW_DIR: u64 = 301;

/// The same log with what an old kernel would have written beside.
fn old_form(items: &[Item]) -> Vec<Item> {
    let mut all = items.to_vec();
    let range = |dir: ObjectId, first: u64, last: u64| {
        let key = Key::new(dir, KeyType::DIR_LOG_ITEM, first);
        (key, dir_range_item(last).as_bytes().to_vec())
    };
    let is_logged = |dir: ObjectId, index: u64| items.iter().any(|(key, _)| *key == names::index_key(dir, index));
    for (key, bytes) in items {
        if key.ty == KeyType::DIR_INDEX {
            let entry = btrfs_format::view::dir_entries(bytes).next().unwrap();
            let at = hash::name_hash(entry.name);
            all.push((Key::new(key.objectid, KeyType::DIR_ITEM, at), bytes.clone()));
            if key.objectid == ObjectId(ROOT) {
                all.push(range(key.objectid, at, at));
            }
        } else if key.ty == KeyType::DIR_LOG_INDEX && key.objectid == ObjectId(ROOT) {
            let last = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let gone = COMMITTED
                .iter()
                .filter(|(index, _)| (key.offset..=last).contains(index) && !is_logged(key.objectid, *index));
            all.extend(gone.map(|(_, name)| {
                let at = hash::name_hash(name.as_bytes());
                range(key.objectid, at, at)
            }));
        } else if key.ty == KeyType::DIR_LOG_INDEX {
            // A new directory is logged whole.
            all.push(range(key.objectid, 0, u64::MAX));
        }
    }
    all
}

fn items_of(fs: &Fs) -> Vec<Item> {
    let tree = fs.mount().store().forest().require(TreeId::FS).unwrap();
    let mut cursor = tree.cursor(Key::MIN, Key::MAX);
    let mut items = Vec::new();
    while let Some((key, item)) = cursor.next().unwrap() {
        items.push((key, item.to_vec()));
    }
    items
}

/// The log in both forms: neither checker nor replay sees a difference. Gives the names in the root
/// directory.
#[track_caller]
fn same(base: &Base, items: Vec<Item>) -> Vec<String> {
    let old = old_form(&items);
    assert!(old.len() > items.len(), "the old form says more");
    let report = check(&[base.crashed_with(old.clone())], &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    let (new, old) = (base.replayed(items), base.replayed(old));
    assert_eq!(items_of(&new), items_of(&old));
    entries(&old, NodeId::ROOT)
}

#[test]
fn removed_names() {
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 2, 3),
        dir_range(ROOT, 3, 3),
    ];
    assert_eq!(same(&Base::new(), items), ["other"]);
}

/// Until 5.18 a range began at the entry before the first that had changed, and that was logged,
/// too.
#[test]
fn ranges_that_begin_with_an_entry_as_it_was() {
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 2, 3),
        dir_index(ROOT, 2, "old", OLD),
    ];
    assert_eq!(same(&Base::new(), items), ["old", "other"]);
}

#[test]
fn names_that_changed_hands() {
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 2, 2),
        dir_range(ROOT, 20, u64::MAX),
        dir_index(ROOT, 20, "older", OLD),
        dir_index(ROOT, 21, "old", X),
        inode(OLD, FILE_MODE, 1, 1),
        inode_ref(OLD, ROOT, &[(20, "older")]),
        inode(X, FILE_MODE, 2, 1),
        inode_ref(X, ROOT, &[(21, "old")]),
    ];
    assert_eq!(same(&Base::new(), items), ["sub", "other", "older", "old"]);
}

#[test]
fn a_new_directory_with_a_file() {
    let base = Base::new();
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 20, u64::MAX),
        dir_index(ROOT, 20, "dir", NEW_DIR),
        unsummed(NEW),
        inode_ref(NEW, NEW_DIR, &[(2, "file")]),
        extent(NEW, 0, base.data.get(), 4096),
        inode(NEW_DIR, DIR_MODE, 1, 1),
        inode_ref(NEW_DIR, ROOT, &[(20, "dir")]),
        dir_range(NEW_DIR, 0, u64::MAX),
        dir_index(NEW_DIR, 2, "file", NEW),
    ];
    assert_eq!(same(&base, items), ["old", "sub", "other", "dir"]);
}

/// A directory entry alone: nothing else tells of the inode's new name.
#[test]
fn an_entry_of_an_inode_that_is_not_logged() {
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 20, u64::MAX),
        dir_index(ROOT, 20, "again", X),
    ];
    assert_eq!(same(&Base::new(), items), ["old", "sub", "other", "again"]);
}
