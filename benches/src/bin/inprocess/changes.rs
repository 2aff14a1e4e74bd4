//! What else is done with names: the calls that a mount makes of each, a name that shall be new looked
//! up before.

use anyhow::{Result, bail};
use cowshed_benches::Measured;
use cowshed_vfs::{FileSystem as _, Lookup, NodeId, RenameFlags, SetAttr, SetXattrFlags};

use crate::names::create;
use crate::report::Report;
use crate::rig::{CALLER, Rig};

pub const ALL: &[&str] = &[
    "chmod",
    "setxattr",
    "getxattr",
    "link",
    "rename",
    "unlink-link",
    "unlink-file",
    "symlink",
    "mkdir",
    "rmdir",
];

/// So many files, looked up by the kernel all the time.
pub fn run(rig: &Rig, report: &Report, count: u64) -> Result<()> {
    let (fs, dir) = (&rig.fs, rig.dir);
    let nodes = (0..count).map(|n| create(fs, dir, n)).collect::<Result<Vec<_>>>()?;
    rig.commit()?;
    let say = |name: &str, run: &dyn Fn(u64) -> Result<()>| -> Result<()> {
        let measured = Measured::of(|| {
            (0..count).try_for_each(run)?;
            anyhow::Ok((count, 0))
        })?;
        report.say(name, &measured);
        rig.commit()
    };
    let free = |name: &str| match fs.lookup(&CALLER, dir, name.as_bytes())? {
        Lookup::Absent { .. } => Ok(()),
        Lookup::Found(_) => bail!("{name} exists already"),
    };
    let node = |n: u64| nodes[n as usize];
    let forget = |node: NodeId| fs.forget(node, 1);
    say("chmod", &|n| {
        let set = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        fs.setattr(&CALLER, node(n), None, &set)?;
        Ok(())
    })?;
    say("setxattr", &|n| {
        Ok(fs.setxattr(&CALLER, node(n), b"user.name", b"value", SetXattrFlags::empty())?)
    })?;
    say("getxattr", &|n| {
        fs.getxattr(&CALLER, node(n), b"user.name", &mut [0; 64])?;
        Ok(())
    })?;
    say("link", &|n| {
        let name = format!("link-{n:08}");
        free(&name)?;
        fs.link(&CALLER, node(n), dir, name.as_bytes())?;
        Ok(())
    })?;
    say("rename", &|n| {
        let (from, to) = (format!("link-{n:08}"), format!("name-{n:08}"));
        free(&to)?;
        let flags = RenameFlags::empty();
        Ok(fs.rename(&CALLER, dir, from.as_bytes(), dir, to.as_bytes(), flags)?)
    })?;
    say("unlink-link", &|n| {
        Ok(fs.unlink(&CALLER, dir, format!("name-{n:08}").as_bytes())?)
    })?;
    say("unlink-file", &|n| {
        fs.unlink(&CALLER, dir, format!("file-{n:08}").as_bytes())?;
        // Made, and its second name looked up.
        fs.forget(node(n), 2);
        Ok(())
    })?;
    say("symlink", &|n| {
        let name = format!("symlink-{n:08}");
        free(&name)?;
        forget(fs.symlink(&CALLER, dir, name.as_bytes(), b"target")?.node);
        Ok(())
    })?;
    let names: Vec<String> = (0..count).map(|n| format!("dir-{n:08}")).collect();
    let mut dirs = Vec::new();
    let made = Measured::of(|| {
        for name in &names {
            free(name)?;
            dirs.push(fs.mkdir(&CALLER, dir, name.as_bytes(), 0o755)?.node);
        }
        anyhow::Ok((count, 0))
    })?;
    report.say("mkdir", &made);
    rig.commit()?;
    say("rmdir", &|n| {
        fs.rmdir(&CALLER, dir, names[n as usize].as_bytes())?;
        forget(dirs[n as usize]);
        Ok(())
    })
}
