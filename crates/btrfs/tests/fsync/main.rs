//! fsync writes a log: what the kernel makes of the volume when it is cut off right after, against
//! what fsync promised.

mod barriers;
mod choice;
mod classes;
mod dice;
mod extents;
mod large;
mod random;
#[path = "../objects/rig.rs"]
#[allow(dead_code)]
mod rig;
mod rotations;
mod seen;
mod speed;

use cowshed_vfs::{FileSystem, Handle, NodeId, WriteFlags};

use rig::{ROOT, Rig};

impl Rig {
    pub fn create_in(&self, dir: NodeId, name: &str) {
        let (entry, opened) = self
            .fs
            .create(&ROOT, dir, name.as_bytes(), 0o644, &rig::CREATE)
            .unwrap();
        self.fs.release(entry.node, opened.handle);
        self.fs.forget(entry.node, 1);
    }
    pub fn write(&self, path: &str, at: u64, data: &[u8]) {
        let (node, flags) = (self.node(path).unwrap(), WriteFlags::empty());
        let written = self.fs.write(&ROOT, node, Handle::NONE, at, data, flags).unwrap();
        assert_eq!(written, data.len());
    }
    pub fn read(&self, path: &str) -> Vec<u8> {
        let node = self.node(path).unwrap();
        let mut buf = vec![0; self.attr(path).unwrap().size_bytes as usize];
        let len = self.fs.read(&ROOT, node, Handle::NONE, 0, &mut buf).unwrap();
        assert_eq!(len, buf.len());
        buf
    }
    pub fn fsync(&self, path: &str) {
        self.fs
            .fsync(&ROOT, self.node(path).unwrap(), Handle::NONE, false)
            .unwrap();
    }
}
