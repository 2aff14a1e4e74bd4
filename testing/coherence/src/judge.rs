//! What must hold of one view, and of two.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::FileType;

use crate::view::{Facts, Seen, View, kind, kind_name};

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Below the pool's root.
    pub path: String,
    pub what: String,
    /// Linux counts a link less by itself: docs/design/fuse-caches.md.
    pub is_of_link_less: bool,
}

/// The number of a subvolume's root, and of the directory that stands in a snapshot for a
/// subvolume which the snapshot does not hold.
const ROOT_INO: u64 = 256;
const STAND_IN_INO: u64 = 2;
/// A mount that shows several subvolumes has the number of their tree in the upper bits.
const INO_BITS: u32 = 40;

/// The number within the subvolume.
fn ino_of(seen: &Seen) -> u64 {
    let ino = fact(&seen.known, "ino").parse::<u64>().unwrap_or(0);
    ino & ((1 << INO_BITS) - 1)
}

fn fault(path: &str, what: String) -> Fault {
    Fault {
        path: path.into(),
        what,
        is_of_link_less: false,
    }
}

/// Linux counts a link less at unlink, also where it has just been told of the new count.
fn is_link_less(seen: &Seen, name: &str, known: &str, is: &str) -> bool {
    let count = |text: &str| text.parse::<u64>().ok();
    let is_less = count(known).is_some_and(|known| count(is) == Some(known + 1));
    name == "nlink" && is_less && kind(&seen.known) != FileType::Directory
}

fn fact<'f>(facts: &'f Facts, name: &str) -> &'f str {
    facts.get(name).map_or("", String::as_str)
}

/// The attributes that Linux knows, and contents of its page cache, are the file system's.
pub fn is_known_fresh(path: &str, seen: &Seen) -> Vec<Fault> {
    let differ = seen.fresh.iter().filter_map(|(name, fresh)| {
        let known = fact(&seen.known, name);
        let what = || format!("{name}: known is {known}, the file system has {fresh}");
        (known != fresh).then(|| Fault {
            is_of_link_less: is_link_less(seen, name, known, fresh),
            ..fault(path, what())
        })
    });
    let mut faults: Vec<_> = differ.collect();
    let (read, map) = (seen.known.get("read"), seen.known.get("map"));
    if let (Some(read), Some(map)) = (read, map)
        && read != map
    {
        faults.push(fault(path, format!("read is {read}, mapped is {map}")));
    }
    faults
}

/// The subvolume that a path leads into: the path of its root.
fn subvolume_of<'p>(view: &View, path: &'p str) -> &'p str {
    let mut at = path;
    loop {
        let is_root = |seen: &Seen| ino_of(seen) == ROOT_INO && kind(&seen.known) == FileType::Directory;
        if view.seen.get(at).is_some_and(is_root) {
            return at;
        }
        match at.rsplit_once('/') {
            Some((above, _)) => at = above,
            None => return "",
        }
    }
}

fn names_in<'v>(view: &'v View, dir: &str) -> BTreeSet<&'v str> {
    let split = |path: &'v String| path.rsplit_once('/').unwrap_or(("", path));
    let of_dir = view.seen.keys().filter(|path| !path.is_empty() && split(path).0 == dir);
    of_dir.map(|path| split(path).1).collect()
}

fn listings(view: &View, faults: &mut Vec<Fault>) {
    for (dir, list) in &view.lists {
        let list = match list {
            Ok(list) => list,
            Err(error) => {
                faults.push(fault(dir, format!("cannot be listed: {error}")));
                continue;
            }
        };
        let listed: BTreeSet<&str> = list.iter().map(|listed| &listed.name[..]).collect();
        let there = names_in(view, dir);
        if listed != there {
            faults.push(fault(dir, format!("lists {listed:?}, and lookups find {there:?}")));
        }
        if listed.len() != list.len() {
            faults.push(fault(dir, "lists a name twice".into()));
        }
        for listed in list {
            let path = match &dir[..] {
                "" => listed.name.clone(),
                dir => format!("{dir}/{}", listed.name),
            };
            let Some(seen) = view.seen.get(&path) else { continue };
            let is = kind_name(kind(&seen.known));
            if is != listed.kind {
                faults.push(fault(&path, format!("is listed as {}, and is {is}", listed.kind)));
            }
            let ino = fact(&seen.known, "ino");
            // btrfs lists a subvolume by the number of its tree.
            if ino != listed.ino.to_string() && ![ROOT_INO, STAND_IN_INO].contains(&ino_of(seen)) {
                faults.push(fault(&path, format!("is listed as inode {}, and is {ino}", listed.ino)));
            }
        }
        let Some(seen) = view.seen.get(dir) else { continue };
        let size: usize = list.iter().map(|listed| 2 * listed.name.len()).sum();
        // btrfs counts each name twice: once for its item, once for its index.
        if fact(&seen.known, "size") != size.to_string() && ino_of(seen) != STAND_IN_INO {
            let is = fact(&seen.known, "size");
            let what = format!("has size {is}, its names make {size}: {listed:?}");
            faults.push(fault(dir, what));
        }
    }
}

fn links(view: &View, faults: &mut Vec<Fault>) {
    let mut objects: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (path, seen) in &view.seen {
        let ino = fact(&seen.known, "ino");
        if ino_of(seen) != STAND_IN_INO {
            objects.entry((subvolume_of(view, path), ino)).or_default().push(path);
        }
    }
    for ((_, ino), paths) in &objects {
        let first = &view.seen[paths[0]];
        for path in paths {
            let facts = &view.seen[*path].known;
            let wanted = match kind(facts) {
                FileType::Directory => 1,
                _ => paths.len(),
            };
            if fact(facts, "nlink") != wanted.to_string() {
                let is = fact(facts, "nlink");
                let what = format!("inode {ino} has {is} links, and the names {paths:?}");
                faults.push(Fault {
                    // Judged by the file system's answer where there is one.
                    is_of_link_less: is_link_less(&view.seen[*path], "nlink", is, &wanted.to_string())
                        && view.seen[*path]
                            .fresh
                            .get("nlink")
                            .is_none_or(|fresh| *fresh == wanted.to_string()),
                    ..fault(path, what)
                });
            }
            for (name, value) in facts {
                let other = fact(&first.known, name);
                if other != value {
                    let what = format!("{name} is {value}, and by its name {} {other}", paths[0]);
                    faults.push(fault(path, what));
                }
            }
        }
    }
}

/// What must hold of a view by itself.
pub fn of_one(view: &View) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, seen) in &view.seen {
        faults.extend(is_known_fresh(path, seen));
        if let Some(error) = seen.known.get("error") {
            faults.push(fault(path, format!("cannot be looked up: {error}")));
        }
    }
    listings(view, &mut faults);
    links(view, &mut faults);
    faults
}

/// Views to compare: how they are called, and which facts are not compared.
pub struct Pair<'a> {
    pub names: [&'a str; 2],
    pub without: &'a [&'a str],
    /// Of different mounts: inode numbers are compared within the subvolume, and not in listings;
    /// what stands in for subvolumes is not compared.
    pub are_strangers: bool,
}

impl Pair<'_> {
    fn is_stand_in(&self, seen: &Seen) -> bool {
        self.are_strangers && ino_of(seen) == STAND_IN_INO
    }

    /// Compares by what is known.
    pub fn compare(&self, a: &View, b: &View) -> Vec<Fault> {
        let [name_a, name_b] = self.names;
        let mut faults = self.compare_all(&a.seen, &b.seen);
        if self.are_strangers {
            return faults;
        }
        for (dir, list) in &a.lists {
            if let Some(other) = b.lists.get(dir)
                && list != other
            {
                faults.push(fault(
                    dir,
                    format!("is listed {name_a} as {list:?}, {name_b} as {other:?}"),
                ));
            }
        }
        faults
    }

    /// The same of objects alone.
    pub fn compare_all(&self, a: &BTreeMap<String, Seen>, b: &BTreeMap<String, Seen>) -> Vec<Fault> {
        let [name_a, name_b] = self.names;
        let mut faults = Vec::new();
        let paths: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for path in paths {
            let (seen_a, seen_b) = match (a.get(path), b.get(path)) {
                (Some(a), Some(b)) => (a, b),
                (Some(_), None) => {
                    faults.push(fault(path, format!("is there {name_a}, not {name_b}")));
                    continue;
                }
                _ => {
                    faults.push(fault(path, format!("is there {name_b}, not {name_a}")));
                    continue;
                }
            };
            if self.is_stand_in(seen_a) && self.is_stand_in(seen_b) {
                continue;
            }
            let facts: BTreeSet<&String> = seen_a.known.keys().chain(seen_b.known.keys()).collect();
            for name in facts.into_iter().filter(|name| !self.without.contains(&&name[..])) {
                let (a, b) = (fact(&seen_a.known, name), fact(&seen_b.known, name));
                let is_same_ino = self.are_strangers && name == "ino" && ino_of(seen_a) == ino_of(seen_b);
                if a != b && !is_same_ino {
                    let what = format!("{name}: {a} {name_a}, {b} {name_b}");
                    faults.push(Fault {
                        is_of_link_less: is_link_less(seen_a, name, a, b),
                        ..fault(path, what)
                    });
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Listed;

    /// What is told of a fault, and the fault.
    type Plant = (&'static str, fn(&mut View));

    fn seen(facts: &[(&str, &str)]) -> Seen {
        let facts: Facts = facts
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        Seen {
            known: facts.clone(),
            fresh: facts,
        }
    }

    fn file(ino: &str, nlink: &str) -> Seen {
        seen(&[
            ("ino", ino),
            ("mode", "100644"),
            ("nlink", nlink),
            ("ctime", "1.0"),
            ("uid", "0"),
        ])
    }

    /// A directory with one file that has two names, and a subvolume with one of the same number.
    fn sound() -> View {
        let dir = |ino, size| seen(&[("ino", ino), ("mode", "40755"), ("nlink", "1"), ("size", size)]);
        let entry = |name: &str, kind: &str, ino| Listed {
            name: name.into(),
            kind: kind.into(),
            ino,
        };
        let objects = [
            ("", dir("300", "10")),
            ("f0", file("301", "2")),
            ("f1", file("301", "2")),
            ("x", dir("256", "4")),
            ("x/f0", file("301", "1")),
        ];
        let top = vec![
            entry("f0", "file", 301),
            entry("f1", "file", 301),
            entry("x", "directory", 700),
        ];
        View {
            seen: objects.map(|(path, seen)| (path.into(), seen)).into(),
            lists: [("", top), ("x", vec![entry("f0", "file", 301)])]
                .map(|(dir, list)| (dir.into(), Ok(list)))
                .into(),
        }
    }

    fn known(view: &mut View, path: &str, name: &str, value: &str) {
        let seen = view.seen.get_mut(path).unwrap();
        seen.known.insert(name.into(), value.into());
    }

    fn list<'v>(view: &'v mut View, dir: &str) -> &'v mut Vec<Listed> {
        view.lists.get_mut(dir).unwrap().as_mut().unwrap()
    }

    #[test]
    fn each_fault_of_one_view_is_found() {
        assert_eq!(of_one(&sound()), []);
        let plants: [Plant; 8] = [
            ("uid: known is 7", |view| known(view, "x/f0", "uid", "7")),
            ("mapped is 1:", |view| {
                known(view, "x/f0", "read", "0:");
                known(view, "x/f0", "map", "1: 1x00");
            }),
            ("lookups find {\"f0\"}", |view| list(view, "x").clear()),
            ("is listed as link", |view| list(view, "x")[0].kind = "link".into()),
            ("is listed as inode 9", |view| list(view, "x")[0].ino = 9),
            ("has 3 links", |view| known(view, "f1", "nlink", "3")),
            ("and by its name f0", |view| known(view, "f1", "uid", "7")),
            ("its names make 4", |view| known(view, "x", "size", "6")),
        ];
        for (expected, plant) in plants {
            let mut view = sound();
            plant(&mut view);
            let faults = of_one(&view);
            assert!(
                faults.iter().any(|fault| fault.what.contains(expected)),
                "{expected}: {faults:?}"
            );
        }
    }

    #[test]
    fn differences_of_two_views_are_found() {
        let pair = Pair {
            names: ["before", "after"],
            without: &["ctime"],
            are_strangers: false,
        };
        assert_eq!(pair.compare(&sound(), &sound()), []);
        let plants: [Plant; 4] = [
            ("is there before, not after", |view| drop(view.seen.remove("x/f0"))),
            ("uid: 0 before, 7 after", |view| known(view, "f0", "uid", "7")),
            ("is listed before as", |view| list(view, "x").clear()),
            ("is there after, not before", |view| {
                drop(view.seen.insert("new".into(), file("9", "1")))
            }),
        ];
        for (expected, plant) in plants {
            let mut after = sound();
            plant(&mut after);
            let faults = pair.compare(&sound(), &after);
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].what.contains(expected), "{expected}: {faults:?}");
        }
        let mut after = sound();
        known(&mut after, "f0", "ctime", "2.0");
        assert_eq!(pair.compare(&sound(), &after), [], "it is not compared");
    }

    #[test]
    fn linux_may_count_a_link_less() {
        let view = sound();
        let file = &view.seen["f0"];
        assert!(is_link_less(file, "nlink", "1", "2") && !is_link_less(file, "nlink", "2", "1"));
        assert!(!is_link_less(&view.seen["x"], "nlink", "0", "1"));
    }
}
