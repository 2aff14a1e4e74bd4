//! Changes of names and attributes, with the calls that a mount makes: LOOKUP precedes the creation
//! of a name.

use std::cell::RefCell;

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

/// `count` files in one directory, to which a front end refers all the time.
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
        // CREATE and LINK each counted a lookup.
        fs.forget(node(n), 2);
        Ok(())
    })?;
    say("symlink", &|n| {
        let name = format!("symlink-{n:08}");
        free(&name)?;
        forget(fs.symlink(&CALLER, dir, name.as_bytes(), b"target")?.node);
        Ok(())
    })?;
    let dirs = RefCell::new(Vec::with_capacity(count as usize));
    say("mkdir", &|n| {
        let name = format!("dir-{n:08}");
        free(&name)?;
        let made = fs.mkdir(&CALLER, dir, name.as_bytes(), 0o755)?;
        dirs.borrow_mut().push(made.node);
        Ok(())
    })?;
    say("rmdir", &|n| {
        fs.rmdir(&CALLER, dir, format!("dir-{n:08}").as_bytes())?;
        forget(dirs.borrow()[n as usize]);
        Ok(())
    })
}
