//! Several threads that create, each in a place of its own: a directory, or a subvolume.

use anyhow::Result;
use cowshed_benches::Measured;
use cowshed_vfs::{FileSystem as _, Lookup, NodeId, Subvolumes};

use crate::names::create;
use crate::report::Report;
use crate::rig::{CALLER, Rig};

pub const ALL: &[&str] = &["create-beside", "commit-beside"];

/// What each thread has for itself.
#[derive(Clone, Copy)]
pub enum Place {
    Directory,
    Subvolume,
}

impl Place {
    pub const ALL: [Place; 2] = [Place::Directory, Place::Subvolume];

    fn name(self) -> &'static str {
        match self {
            Place::Directory => "create-beside, dirs",
            Place::Subvolume => "create-beside, subvols",
        }
    }

    fn make(self, rig: &Rig, n: u64) -> Result<NodeId> {
        let name = format!("place-{n}");
        Ok(match self {
            Place::Directory => rig.fs.mkdir(&CALLER, rig.dir, name.as_bytes(), 0o755)?.node,
            Place::Subvolume => {
                Subvolumes::create(&rig.fs, &CALLER, rig.dir, name.as_bytes())?;
                match rig.fs.lookup(&CALLER, rig.dir, name.as_bytes())? {
                    Lookup::Found(entry) => entry.node,
                    Lookup::Absent { .. } => anyhow::bail!("a new subvolume is missing"),
                }
            }
        })
    }
}

/// `count` files by so many threads together.
pub fn run(rig: &Rig, report: &Report, place: Place, (threads, count): (u64, u64)) -> Result<()> {
    let places = (0..threads).map(|n| place.make(rig, n)).collect::<Result<Vec<_>>>()?;
    let each = count / threads;
    let made = Measured::of(|| {
        let work = |dir| move || (0..each).try_for_each(|n| create(&rig.fs, dir, n).map(drop));
        std::thread::scope(|scope| {
            let running: Vec<_> = places.iter().map(|dir| scope.spawn(work(*dir))).collect();
            running
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a creating thread does not panic"))
        })?;
        anyhow::Ok((each * threads, 0))
    })?;
    report.say(place.name(), &made);
    let commit = Measured::of(|| rig.commit().map(|()| (each * threads, 0)))?;
    report.say("commit-beside", &commit);
    Ok(())
}
