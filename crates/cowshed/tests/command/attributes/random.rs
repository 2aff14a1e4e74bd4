//! Operations by chance, of two users and the superuser: after each the kernel knows the attributes
//! of all names as the file system has them, and a remount shows the same.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::PathBuf;

use rustix::fs::FallocateFlags as F;

use super::audit::{Area, LINES};
use super::setid::{allocate, copy, writable};
use super::view;
use super::{KINDS, OWNER, OurMount, ROOT, STRANGER, User, act_as, can_run};
use crate::extents::Dice;

const STEPS: u64 = 400;
/// Names of a table's operation that lead to a file, and those that come and go.
const FILES: [&str; 5] = ["f", "hard", "other", "holes", "new"];
const PLACES: [&str; 12] = [
    "f",
    "hard",
    "other",
    "holes",
    "link",
    "new",
    "sub",
    "sub/new",
    "sub/inner",
    "sub/deep",
    "empty",
    "empty/new",
];

/// What an operation of the table lacks: places and lengths by chance, names that meet.
fn wild(dice: &mut Dice, area: &Area) -> (String, Box<dyn FnOnce() -> io::Result<()> + Send>) {
    let mut file = || area.at(FILES[dice.below(FILES.len() as u64) as usize]);
    let (path, other) = (file(), file());
    let mut place = || area.at(PLACES[dice.below(PLACES.len() as u64) as usize]);
    let (from, to) = (place(), place());
    let (at, len) = (dice.below(300_000), 1 + dice.below(60_000));
    // With set-id bits as a rule, and writable for all.
    let mode = [0o6777, 0o4777, 0o2767, 0o6755, 0o640, dice.below(0o10000) as u32][dice.below(6) as usize];
    let kind = dice.below(12);
    let told = format!("{kind}: {path:?} {other:?} {from:?} {to:?} {at} {len} {mode:o}");
    let run: Box<dyn FnOnce() -> io::Result<()> + Send> = match kind {
        0 | 1 => Box::new(move || writable(&path)?.write_all_at(&vec![3; len as usize], at)),
        2 => Box::new(move || writable(&path)?.set_len(at)),
        3 => Box::new(move || allocate(&path, F::PUNCH_HOLE | F::KEEP_SIZE, at, len)),
        4 => Box::new(move || allocate(&path, F::KEEP_SIZE, at, len)),
        5 => Box::new(move || copy(&path, &other, 0, at, len as usize)),
        6 | 7 => Box::new(move || fs::set_permissions(&from, fs::Permissions::from_mode(mode))),
        8 => Box::new(move || fs::rename(&from, &to)),
        9 => Box::new(move || fs::hard_link(&from, &to)),
        10 => Box::new(move || chown(&from, None, Some(if mode & 1 == 0 { OWNER.gid } else { STRANGER.gid }))),
        _ => Box::new(move || File::open(&path)?.sync_all()),
    };
    (told, run)
}

/// All names that there may be: found without listing directories, which has the kernel fetch
/// attributes.
fn candidates(area: &Area) -> Vec<PathBuf> {
    let more = ["sub/heir", "sub/inheriting", "zeros", "small"];
    let names = PLACES.iter().chain(&more).map(|name| area.at(name));
    std::iter::once(area.0.clone()).chain(names).collect()
}

/// The area's names of the beginning are needed by most operations: those that went come back,
/// where nothing is in their way.
fn restore(area: &Area) {
    for name in ["f", "other", "holes", "sub/inner"] {
        let path = area.at(name);
        if !path.exists() {
            let make = || {
                fs::write(&path, vec![7; 64 << 10])?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o6777))?;
                chown(&path, Some(OWNER.uid), Some(OWNER.gid))
            };
            let _ = make();
        }
    }
    for name in ["sub", "sub/deep", "empty"] {
        let path = area.at(name);
        let make = || {
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777))
        };
        let _ = make();
    }
}

fn run_random(options: &'static str, seed: u64) {
    let mount = OurMount::new(options);
    let area = Area::make(mount.shared().join("area"));
    let mut dice = Dice(seed);
    let paths = candidates(&area);
    let mut past = Vec::new();
    let mut succeeded = 0;
    for step in 0..STEPS {
        restore(&area);
        view::fresh_views(&paths);
        let user: User = [OWNER, STRANGER, OWNER, STRANGER, ROOT][dice.below(5) as usize];
        let (name, operation) = LINES[dice.below(LINES.len() as u64) as usize];
        // An open of a fifo waits.
        let is_of_table = name != "create a fifo" && dice.below(3) == 0;
        let (told, done) = match is_of_table {
            true => {
                // What an operation of the table takes for granted may be otherwise by now.
                let run = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| operation(&area, user)));
                let done = act_as(user, run);
                (
                    name.to_owned(),
                    done.unwrap_or_else(|_| Err(io::Error::other("does not apply"))),
                )
            }
            false => {
                let (told, run) = wild(&mut dice, &area);
                (told, act_as(user, run))
            }
        };
        succeeded += u64::from(done.is_ok());
        past.push(format!("{step} by {}: {told}: {done:?}", user.uid));
        let stale = view::stale(&paths, &mut dice);
        let tail = past.len().saturating_sub(5);
        assert!(
            stale.is_empty(),
            "{options}, seed {seed}:\n{}\nafter\n{}",
            stale.join("\n"),
            past[tail..].join("\n")
        );
    }
    eprintln!("{options}, seed {seed}: {succeeded} of {STEPS} operations succeeded");
    let before = view::fresh_views(&paths);
    mount.remount();
    let differences = view::differences(&before, &view::fresh_views(&paths));
    assert!(
        differences.is_empty(),
        "{options}, seed {seed}:\n{}",
        differences.join("\n")
    );
    mount.end();
}

#[test]
fn attributes_are_fresh_after_random_operations_of_several_users() {
    let Some(()) = can_run() else { return };
    for (options, seed) in [
        (KINDS[0], 1),
        (KINDS[1], 2),
        ("suid,compress=zstd", 3),
        ("suid,strictatime", 4),
    ] {
        run_random(options, seed);
    }
}

/// `COWSHED_SEEDS=first..end`
#[test]
#[ignore = "minutes"]
fn attributes_are_fresh_after_long_random_operations() {
    let Some(()) = can_run() else { return };
    let text = std::env::var("COWSHED_SEEDS").unwrap_or_else(|_| "100..140".into());
    let (first, end) = text.split_once("..").expect("first..end");
    for seed in first.parse().unwrap()..end.parse::<u64>().unwrap() {
        eprintln!("seed {seed}");
        run_random(KINDS[seed as usize % 2], seed);
    }
}
