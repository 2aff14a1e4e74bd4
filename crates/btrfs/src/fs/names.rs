//! Lookups, and what front ends that cache names are told when an ioctl makes or removes one (a
//! subvolume, a clone of a tree).
//!
//! Having a front end drop a cached name costs two switches of threads. So it is asked only where
//! it may have cached something: that a name is absent, or the subvolume that was deleted. A lookup
//! may run at the same time. It first notes what the front end will cache
//! ([`DirData::note_absence`], the count of lookups), and then looks again; the ioctl first makes
//! its change, and then checks what was noted. The barriers keep each in this order, so that at
//! least one of the two sees the other.
//!
//! [`DirData::note_absence`]: crate::object::DirData::note_absence

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cowshed_vfs::{Access, Context, Entry, Lookup, NodeId};

use super::Fs;
use crate::dir;
use crate::error::Result;
use crate::object::{Inode, Subvol};

/// Subvolumes with fewer inodes in memory are forgotten with their names. All inodes in memory, of
/// other subvolumes, too, have to be looked at to find those of one.
const MANY_INODES: usize = 1000;

impl Fs {
    pub(super) fn look_up(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<Lookup> {
        let dir = self.inode(parent)?;
        crate::access::check_dir(&dir)?;
        self.caller(ctx).need(&dir, Access::EXEC)?;
        let was_noted = dir.dir.may_remember_absence();
        let found = match self.find(&dir, name)? {
            None if !was_noted => self.find_or_note_absence(&dir, name)?,
            found => found,
        };
        Ok(match found {
            Some(entry) => Lookup::Found(entry),
            None => Lookup::Absent { valid: self.validity() },
        })
    }

    fn find(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Entry>> {
        let found = dir::lookup(&self.mount, dir, name)?;
        Ok(found.and_then(|inode| self.entry_unless_gone(&inode)))
    }

    /// Looks for a name that was not found, for a front end that may cache that.
    fn find_or_note_absence(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Entry>> {
        dir.dir.note_absence();
        fence(Ordering::SeqCst);
        self.find(dir, name)
    }

    /// An entry for an inode; counts one lookup.
    pub(super) fn entry(&self, inode: &Arc<Inode>) -> Entry {
        self.mount.objects().views.add_lookup(self.member.id, inode);
        let (tree, generation) = (inode.tree.id(), inode.attr_now().generation);
        Entry {
            node: self.numbering.node(inode),
            generation: self.numbering.generation(tree, inode.ino, generation),
            attr: self.attr(inode),
            entry_valid: self.validity(),
            attr_valid: self.validity(),
        }
    }

    /// As [`Fs::entry`], of an inode that was found by a name; `None` where that was the name of a
    /// subvolume that is deleted by now.
    pub(super) fn entry_unless_gone(&self, inode: &Arc<Inode>) -> Option<Entry> {
        let entry = self.entry(inode);
        if inode.ino == inode.subvol.root_ino {
            fence(Ordering::SeqCst);
            if inode.subvol.is_dead() {
                self.give_back(inode, 1);
                return None;
            }
        }
        Some(entry)
    }

    /// An ioctl has made a name.
    pub(super) fn name_came(&self, dir: &Arc<Inode>, name: &[u8]) {
        fence(Ordering::SeqCst);
        self.tell_of_name(dir, name, dir.dir.may_remember_absence());
    }

    /// An ioctl has deleted a subvolume.
    pub(super) fn subvolume_gone(&self, dir: &Arc<Inode>, name: &[u8], gone: &Arc<Subvol>) {
        fence(Ordering::SeqCst);
        let objects = self.mount.objects();
        // Each of its inodes that is in memory has a reference.
        if Arc::strong_count(gone) < MANY_INODES {
            let root = objects.inodes.get(gone.id, gone.root_ino);
            // It may have left memory by now, remembered.
            let is_known = root.is_none_or(|root| objects.views.refers(self.member.id, &root));
            return self.tell_of_name(dir, name, is_known);
        }
        if let Some(caches) = self.caches() {
            let remembered = self.front.remembered(gone);
            caches.subvolume_gone(self.numbering.node(dir), name, remembered);
        }
        for other in objects.views.others_with(self.member.id, dir) {
            other.subvolume_gone(dir, name, gone);
        }
    }

    /// `is_known`: the front end may have cached something of the name.
    fn tell_of_name(&self, dir: &Arc<Inode>, name: &[u8], is_known: bool) {
        if let Some(caches) = self.caches() {
            let node = self.numbering.node(dir);
            match is_known {
                true => caches.name_changed(node, name),
                false => caches.attributes_changed(node),
            }
        }
        for other in self.mount.objects().views.others_with(self.member.id, dir) {
            other.name_changed(dir, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Mutex;

    use cowshed_runtime::FixedEnv;
    use cowshed_vfs::{Caches, FileSystem, Subvolumes, Volume as _};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::MountOptions;
    use crate::mount::Mount;
    use crate::testing::memory_volume;

    /// What it was told to look at again.
    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Told {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    impl Caches for Told {
        fn attributes_changed(&self, _: NodeId) {
            self.0.lock().unwrap().push("attributes".into());
        }
        fn name_changed(&self, _: NodeId, name: &[u8]) {
            self.0.lock().unwrap().push(String::from_utf8_lossy(name).into_owned());
        }
        fn content_changed(&self, _: NodeId, _: Vec<Range<u64>>) {}
        fn content_lost(&self, _: NodeId, _: Vec<Range<u64>>) {}
        fn settle(&self) {}
    }

    fn start() -> (Fs, Arc<Told>) {
        let env = Arc::new(FixedEnv::default());
        let mount = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let (fs, told) = (
            Fs::new(mount, MountOptions::default()).unwrap(),
            Arc::new(Told::default()),
        );
        fs.set_caches(told.clone());
        (fs, told)
    }

    fn make(fs: &Fs, name: &[u8]) {
        Subvolumes::create(fs, &Context::root(), NodeId::ROOT, name).unwrap();
    }

    fn delete(fs: &Fs, name: &[u8]) {
        fs.delete(&Context::root(), NodeId::ROOT, name).unwrap();
    }

    #[test]
    fn names_of_subvolumes_are_told_where_something_may_be_remembered() {
        let (fs, told) = start();
        let ctx = Context::root();
        let look_up = |name| match fs.lookup(&ctx, NodeId::ROOT, name).unwrap() {
            Lookup::Found(_) => true,
            Lookup::Absent { .. } => false,
        };
        make(&fs, b"first");
        assert_eq!(told.take(), ["attributes"], "no name was ever absent here");
        assert!(look_up(b"first"));
        make(&fs, b"second");
        assert_eq!(told.take(), ["attributes"], "nor by a lookup that found something");
        delete(&fs, b"second");
        assert_eq!(told.take(), ["attributes"], "it was never looked up");
        delete(&fs, b"first");
        assert_eq!(told.take(), ["first"], "it was looked up");

        assert!(!look_up(b"absent"));
        for name in ["absent", "other"] {
            make(&fs, name.as_bytes());
            assert_eq!(told.take(), [name], "a name was absent");
        }
        let made = fs.mkdir(&ctx, NodeId::ROOT, b"dir", 0o755).unwrap().node;
        Subvolumes::create(&fs, &ctx, made, b"inside").unwrap();
        assert_eq!(told.take(), ["attributes"], "not in this directory");
        fs.destroy();
    }

    #[test]
    fn a_lookup_that_a_new_subvolume_overtakes_finds_it() {
        let (fs, told) = start();
        let root = fs.inode(NodeId::ROOT).unwrap();
        assert!(fs.find(&root, b"new").unwrap().is_none());
        make(&fs, b"new");
        assert_eq!(told.take(), ["attributes"], "nothing was noted yet");
        assert!(fs.find_or_note_absence(&root, b"new").unwrap().is_some());
        fs.destroy();
    }

    #[test]
    fn a_lookup_that_a_deletion_overtakes_finds_nothing() {
        let (fs, told) = start();
        let root = fs.inode(NodeId::ROOT).unwrap();
        make(&fs, b"old");
        let found = dir::lookup(&fs.mount, &root, b"old").unwrap().unwrap();
        told.take();
        delete(&fs, b"old");
        assert_eq!(told.take(), ["attributes"], "no lookup was counted yet");
        assert!(fs.entry_unless_gone(&found).is_none());
        assert!(!fs.mount.objects().views.refers(fs.member.id, &found));
        drop((found, root));
        fs.destroy();
    }
}
