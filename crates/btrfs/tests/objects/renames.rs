//! Renames: the whole matrix of what may replace what.

use cowshed_vfs::{Error, FileKind, FileSystem, RenameFlags};

use crate::rig::{ROOT, Rig, can_run};

const PLAIN: RenameFlags = RenameFlags::empty();
const SWAP: RenameFlags = RenameFlags::EXCHANGE;

#[test]
fn matrix_of_source_and_target() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    for place in ["a", "b"] {
        rig.mkdir(place).unwrap();
    }
    let setup = |at: &str, kind: &str| match kind {
        "file" => drop(rig.create(at).unwrap()),
        "empty" => drop(rig.mkdir(at).unwrap()),
        "full" => {
            rig.mkdir(at).unwrap();
            rig.create(&format!("{at}/x")).unwrap();
        }
        _ => {}
    };
    let clear = |at: &str| {
        let _ = rig.unlink(&format!("{at}/x"));
        let _ = rig.rmdir(at);
        let _ = rig.unlink(at);
        assert!(!rig.exists(at));
    };
    let outcome = |source: &str, target: &str| match (source, target) {
        (_, "none") => Ok(()),
        ("file", "file") | ("empty" | "full", "empty") => Ok(()),
        ("file", _) => Err(Error::IsDirectory),
        (_, "file") => Err(Error::NotDirectory),
        (_, _) => Err(Error::NotEmpty),
    };
    for to in ["a/t", "b/t"] {
        for source in ["file", "empty", "full"] {
            for target in ["none", "file", "empty", "full"] {
                let what = format!("{source} over {target} at {to}");
                setup("a/s", source);
                setup(to, target);
                let moving = rig.attr("a/s").unwrap().ino;
                let there = rig.attr(to).map(|a| a.ino).ok();
                assert_eq!(
                    rig.rename("a/s", to, RenameFlags::NO_REPLACE),
                    match there {
                        Some(_) => Err(Error::Exists),
                        None => Ok(()),
                    },
                    "{what}"
                );
                if there.is_none() {
                    rig.rename(to, "a/s", PLAIN).unwrap();
                }
                let swapped = rig.rename("a/s", to, SWAP);
                assert_eq!(swapped, there.map(|_| ()).ok_or(Error::NotFound), "{what}");
                if let Some(there) = there {
                    assert_eq!(
                        (rig.attr("a/s").unwrap().ino, rig.attr(to).unwrap().ino),
                        (there, moving),
                        "{what}"
                    );
                    rig.rename("a/s", to, SWAP).unwrap();
                }
                assert_eq!(rig.rename("a/s", to, PLAIN), outcome(source, target), "{what}");
                if outcome(source, target).is_ok() {
                    assert_eq!(rig.attr(to).unwrap().ino, moving, "{what}");
                    assert!(!rig.exists("a/s"), "{what}");
                    assert_eq!(rig.exists(&format!("{to}/x")), source == "full", "{what}");
                } else {
                    assert_eq!(rig.attr("a/s").unwrap().ino, moving, "{what}");
                    clear("a/s");
                }
                clear(to);
                rig.assert_names_agree("a");
                rig.assert_names_agree("b");
            }
        }
    }
    rig.finish();
}

#[test]
fn a_directory_does_not_move_below_itself() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    for path in ["a", "a/b", "a/b/c", "d"] {
        rig.mkdir(path).unwrap();
    }
    assert_eq!(rig.rename("a", "a/b/c/a", PLAIN), Err(Error::Invalid));
    assert_eq!(rig.rename("a", "a/a", PLAIN), Err(Error::Invalid));
    assert_eq!(rig.rename("a", "a/b", SWAP), Err(Error::Invalid));
    assert_eq!(rig.rename("a/b/c", "a", SWAP), Err(Error::Invalid));
    assert_eq!(rig.rename("a/b/c", "a", PLAIN), Err(Error::NotEmpty));
    rig.rename("a/b", "d/b", PLAIN).unwrap();
    assert_eq!(
        rig.rename("d", "d/b/c/d", PLAIN),
        Err(Error::Invalid),
        "through the new parent"
    );
    rig.rename("a", "d/b/c/a", PLAIN).unwrap();
    let dots = rig.list_from("d/b/c/a", 0, 2);
    assert_eq!(dots[1].2, rig.attr("d/b/c").unwrap().ino, "dotdot follows");
    rig.finish();
}

#[test]
fn the_same_inode_under_both_names_stays() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.create("one").unwrap();
    rig.link("one", "two").unwrap();
    rig.rename("one", "two", PLAIN).unwrap();
    rig.rename("one", "one", PLAIN).unwrap();
    assert!(rig.exists("one") && rig.exists("two"));
    assert_eq!(rig.rename("one", "two", RenameFlags::NO_REPLACE), Err(Error::Exists));
    assert_eq!(rig.rename("none", "two", PLAIN), Err(Error::NotFound));
    assert_eq!(
        rig.rename("one", "two", SWAP | RenameFlags::NO_REPLACE),
        Err(Error::Invalid)
    );
    rig.finish();
}

#[test]
fn a_whiteout_stays_behind() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("d").unwrap();
    for (from, to) in [("a", "b"), ("a", "d/b")] {
        let moving = match rig.exists(from) {
            true => {
                rig.unlink(from).unwrap();
                rig.create(from).unwrap().attr.ino
            }
            false => rig.create(from).unwrap().attr.ino,
        };
        rig.rename(from, to, RenameFlags::WHITEOUT).unwrap();
        assert_eq!(rig.attr(to).unwrap().ino, moving);
        let left = rig.attr(from).unwrap();
        assert_eq!(
            (left.kind, left.rdev, left.perm, left.nlink),
            (FileKind::CharDevice, 0, 0, 1)
        );
    }
    rig.assert_names_agree("");
    rig.finish();
}

#[test]
fn what_is_replaced_lives_while_it_is_open() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.create("new").unwrap();
    let old = rig.create("old").unwrap();
    let open = rig.fs.open(&ROOT, old.node, &crate::rig::CREATE).unwrap();
    rig.rename("new", "old", PLAIN).unwrap();
    assert_eq!(rig.fs.getattr(&ROOT, old.node, None).unwrap().nlink, 0);
    assert_eq!(rig.orphans(), [old.attr.ino]);
    rig.fs.forget(old.node, u64::MAX);
    assert_eq!(rig.orphans(), [old.attr.ino], "open, though forgotten");
    rig.fs.release(old.node, open.handle);
    assert_eq!(rig.orphans(), Vec::<u64>::new());
    assert!(rig.is_gone(old.attr.ino));
    rig.finish();
}
