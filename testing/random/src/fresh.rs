//! The model of a volume when it is fresh.

use anyhow::Result;
use cowshed_model::{At, Id, Model, Name, Node};

use crate::subject::Subject;

impl Subject {
    /// A model of the fresh volume.
    pub fn model(&self) -> Result<Model> {
        let root = self.root_at(&[])?;
        let mut model = Model::new(self.setup.node_bytes, root);
        model.mount = self.setup.rules();
        let mut all: Vec<(Id, Vec<Name>)> = Vec::new();
        for (parent, name) in &self.setup.subvolumes {
            let above = parent.0.checked_sub(256).and_then(|n| all.get(n as usize));
            let (parent, path) = above.cloned().unwrap_or((Model::ROOT, Vec::new()));
            let path = [&path[..], &[*name]].concat();
            all.push((model.add_subvolume(parent, *name, self.root_at(&path)?), path));
        }
        Ok(model)
    }

    /// A directory as it is, but for its names.
    fn root_at(&self, path: &[Name]) -> Result<Node> {
        let attr = self.with(&At::Path(path.to_vec()), |node| self.attr(node))?;
        let mut node = Model::empty_root(attr.perm, attr.mtime);
        (node.atime, node.ctime, node.btime) = (attr.atime, attr.ctime, attr.btime);
        Ok(node)
    }
}
