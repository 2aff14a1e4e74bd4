//! A tree and a file of data are sent, whole and then as the changes to a thousand files; sent and
//! received on the same side; and two snapshots of very many files that differ in a hundred are
//! compared.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::{create_subvolume, limit};

use super::{Lines, Rig, open_dir, quietly, timed};
use crate::bench::loads;
use crate::bench::side::{Mounted, Setup, Side};
use crate::run;

/// Files that change between two snapshots of the tree that is sent.
const CHANGES: usize = 1000;
/// Files that change between two snapshots of very many.
const FEW_CHANGES: u64 = 100;

pub fn run(rig: &Rig<'_>) -> Result<Lines> {
    let mut lines = sent(rig)?;
    lines.extend(compared(rig)?);
    Ok(lines)
}

fn snapshot(rig: &Rig<'_>, of: &Path, name: &str) -> Result<PathBuf> {
    cowshed_harness::snapshot(&open_dir(of)?, &open_dir(&rig.mnt())?, name, true)?;
    rig.sync()?;
    Ok(rig.mnt().join(name))
}

fn sent(rig: &Rig<'_>) -> Result<Lines> {
    create_subvolume(&open_dir(&rig.mnt())?, "sent")?;
    let tree = rig.mnt().join("sent");
    run::output(Command::new("cp").arg("-a").arg(&rig.args.tree).arg(tree.join("tree")))?;
    let bytes = (rig.args.mib << 20).to_string();
    loads::generate(&tree, &["stream-write", &bytes])?;
    let first = snapshot(rig, &tree, "first")?;
    change(&tree.join("tree"), CHANGES)?;
    let second = snapshot(rig, &tree, "second")?;
    let setup = Setup {
        mkfs: &["-K"],
        touched_bytes: 2 << 30,
        ..Setup::default()
    };
    let other_dir = rig.args.dir.join(format!("cowshed-bench-{}-other", std::process::id()));
    std::fs::create_dir(&other_dir)?;
    let removed = crate::bench::side::Removed(other_dir.clone());
    let other = Mounted::with(rig.side, &other_dir, &setup)?;
    let mut lines = Lines::new();
    let mut note = |what: &str, ms: f64| lines.push((what.to_owned(), ms));
    for _ in 0..2 {
        // Once for the caches, once to be measured.
        let _ = timed(|| send(rig, &[&first], None))?;
    }
    note("tree sent", timed(|| send(rig, &[&first], None))?.0);
    note(
        "tree sent and received",
        timed(|| send(rig, &[&first], Some(&other.mountpoint())))?.0,
    );
    let parent = [Path::new("-p"), &first, &second];
    note("changes sent", timed(|| send(rig, &parent, None))?.0);
    note(
        "changes sent and received",
        timed(|| send(rig, &parent, Some(&other.mountpoint())))?.0,
    );
    ensure!(other.mountpoint().join("second/tree").is_dir(), "nothing was received");
    other.finish()?;
    drop(removed);
    Ok(lines)
}

/// Every n-th file of the tree has something else at its end, up to so many.
fn change(tree: &Path, count: usize) -> Result<()> {
    let found = run::output(Command::new("find").arg(tree).args(["-type", "f", "-size", "-200k"]))?;
    let paths: Vec<_> = found.lines().collect();
    let every = (paths.len() / count).max(1);
    for path in paths.iter().step_by(every).take(count) {
        use std::io::Write as _;
        let opened = std::fs::OpenOptions::new().append(true).open(path);
        opened.and_then(|mut file| file.write_all(b"changed"))?;
    }
    Ok(())
}

/// To nowhere, or into a directory.
fn send(rig: &Rig<'_>, what: &[&Path], to: Option<&Path>) -> Result<()> {
    let mut send = rig.tool(&["send", "-q"]);
    send.args(what).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut sender = send.spawn().with_context(|| format!("{send:?}"))?;
    let stream = sender.stdout.take().context("a pipe")?;
    let mut receive = match to {
        None => Command::new("cat"),
        Some(dir) => {
            let mut receive = rig.tool(&["receive", "-q"]);
            receive.arg(dir);
            receive
        }
    };
    quietly(receive.stdin(stream))?;
    let status = limit::wait(&mut sender, Duration::from_secs(60))?;
    let status = status.context("the sender does not end")?;
    ensure!(status.success(), "{send:?}: {status}");
    Ok(())
}

/// The kernel has no such comparison: `btrfs send --no-data` comes nearest.
fn compared(rig: &Rig<'_>) -> Result<Lines> {
    let tree = rig.many_files("compared", rig.args.files)?;
    let before = snapshot(rig, &tree, "before")?;
    for number in 0..FEW_CHANGES {
        let at = number * (rig.args.files / 10) / FEW_CHANGES;
        std::fs::write(tree.join(format!("part-{}/d/file-{at:08}", number % 10)), "new")?;
    }
    let after = snapshot(rig, &tree, "after")?;
    let compare = || match rig.side {
        Side::Ours => quietly(rig.tool(&["diff"]).args([&before, &after])),
        _ => {
            let words = [Path::new("--no-data"), Path::new("-p"), &before, &after];
            send(rig, &words, None)
        }
    };
    let _ = timed(compare)?;
    let (ms, ()) = timed(compare)?;
    Ok(vec![("two snapshots compared".into(), ms)])
}
