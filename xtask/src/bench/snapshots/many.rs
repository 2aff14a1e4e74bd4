//! Very many subvolumes: made, snapshots of one with a little in it, listed, asked for what is new,
//! deleted, and gone.

use std::fs::File;

use anyhow::Result;

use super::{Lines, Rig, open_dir, quietly, timed};
use crate::run;

pub fn run(rig: &Rig<'_>) -> Result<Lines> {
    let count = rig.args.subvolumes;
    let top = open_dir(&rig.mnt())?;
    cowshed_harness::create_subvolume(&top, "source")?;
    let tree = rig.mnt().join("source");
    for number in 0..1000 {
        std::fs::write(tree.join(format!("file-{number}")), "some contents")?;
    }
    rig.sync()?;
    let source = File::open(&tree)?;
    let each = |step: &dyn Fn(&str) -> std::io::Result<()>, prefix: &str| {
        timed(|| {
            for number in 0..count {
                step(&format!("{prefix}-{number:06}"))?;
            }
            Ok(())
        })
    };
    let mut lines = Lines::new();
    let mut note = |what: &str, (ms, ()): (f64, ())| lines.push((format!("{count} {what}"), ms));
    note(
        "subvolumes made",
        each(&|name| cowshed_harness::create_subvolume(&top, name), "empty")?,
    );
    note(
        "snapshots made",
        each(&|name| cowshed_harness::snapshot(&source, &top, name, false), "snap")?,
    );
    rig.sync()?;
    let mut list = rig.tool(&["subvolume", "list"]);
    list.arg(rig.mnt());
    note("of each listed", timed(|| quietly(&mut list))?);
    note(
        "snapshots deleted",
        each(&|name| cowshed_harness::delete_subvolume(&top, name), "snap")?,
    );
    note("snapshots gone", timed(|| rig.wait_for_drops())?);
    note(
        "subvolumes deleted",
        each(&|name| cowshed_harness::delete_subvolume(&top, name), "empty")?,
    );
    note("subvolumes gone", timed(|| rig.wait_for_drops())?);
    run::output(rig.tool(&["subvolume", "list"]).arg(rig.mnt()))?;
    Ok(lines)
}
