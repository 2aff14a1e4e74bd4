//! The pool of names: so few that processes collide on them all the time.

use cowshed_device_sim::Rng;

/// Mostly directories.
const DIRS: [&str; 3] = ["d0", "d1", "d2"];
/// Mostly files.
const FILES: [&str; 4] = ["f0", "f1", "f2", "f3"];
/// Anything.
const OTHERS: [&str; 2] = ["x0", "x1"];

/// All names that an operation gives to something.
pub fn pool() -> impl Iterator<Item = &'static str> {
    DIRS.into_iter().chain(FILES).chain(OTHERS)
}

fn below(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

/// A directory, from the pool's root down. The root is the empty path.
pub fn dir(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 | 1 => String::new(),
        7 => {
            let above = DIRS[rng.index(2)];
            below(above, DIRS[rng.index(DIRS.len())])
        }
        6 => OTHERS[rng.index(OTHERS.len())].to_owned(),
        _ => DIRS[rng.index(DIRS.len())].to_owned(),
    }
}

/// A name below a directory, for something else than a directory.
pub fn file(rng: &mut Rng) -> String {
    let dir = dir(rng);
    match rng.one_in(12) {
        true => below(&dir, OTHERS[rng.index(OTHERS.len())]),
        false => below(&dir, FILES[rng.index(FILES.len())]),
    }
}

/// A name for a new directory or subvolume.
pub fn new_dir(rng: &mut Rng) -> String {
    let above = match rng.below(3) {
        0 | 1 => String::new(),
        _ => DIRS[rng.index(DIRS.len())].to_owned(),
    };
    match rng.one_in(4) {
        true => below(&above, OTHERS[rng.index(OTHERS.len())]),
        false => below(&above, DIRS[rng.index(DIRS.len())]),
    }
}

/// A name of any kind.
pub fn any(rng: &mut Rng) -> String {
    match rng.below(3) {
        0 => new_dir(rng),
        _ => file(rng),
    }
}

/// The directory and the name in it.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
