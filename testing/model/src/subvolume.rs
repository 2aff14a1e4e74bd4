//! Subvolumes: directories that names do not move into, nor out of, but those of subvolumes. They
//! are made with the volume.

use std::collections::BTreeMap;

use cowshed_vfs::{Error, Result};

use crate::{Body, Id, Model, Name, Node};

impl Model {
    /// A subvolume from the start: a name in the root directory of another one (or the top), and
    /// its root as it is.
    ///
    /// # Panics
    /// Where the name is taken.
    pub fn add_subvolume(&mut self, parent: Id, name: Name, root: Node) -> Id {
        let id = Id(self.next_id);
        self.next_id += 1;
        let body = Body::Dir {
            names: BTreeMap::new(),
            parent,
        };
        let root = Node {
            subvolume: id,
            body,
            ..root
        };
        self.nodes.insert(id, root);
        let old = self.names_mut(parent).insert(name, id);
        assert!(old.is_none(), "the name is free");
        id
    }

    pub fn is_subvolume_root(&self, id: Id) -> bool {
        id != Self::ROOT && self.node(id).subvolume == id
    }

    /// Errors: `CrossDevice`.
    pub(crate) fn same_subvolume(&self, a: Id, b: Id) -> Result<()> {
        match self.node(a).subvolume == self.node(b).subvolume {
            true => Ok(()),
            false => Err(Error::CrossDevice),
        }
    }

    /// Paths of the roots of subvolumes; the top level is none of them.
    pub fn subvolumes(&self) -> Vec<Vec<Name>> {
        let mut found = Vec::new();
        let mut left = vec![(Self::ROOT, Vec::new())];
        while let Some((here, path)) = left.pop() {
            let names = self.names(here).into_iter().flatten();
            for (name, child) in names.filter(|(_, child)| self.node(**child).is_dir()) {
                let path = [&path[..], &[*name]].concat();
                if self.is_subvolume_root(*child) {
                    found.push(path.clone());
                }
                left.push((*child, path));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use cowshed_vfs::{RenameFlags, Timestamp};

    use super::*;
    use crate::{Answer, At, Op, Outcome, Place};

    const NOW: Timestamp = Timestamp::new(0, 0);
    const SUB: Name = Name(0);

    fn place(path: &[u16], name: u16) -> Place {
        Place {
            dir: At::Path(path.iter().map(|n| Name(*n)).collect()),
            name: Name(name),
        }
    }
    fn rename(from: Place, to: Place, flags: RenameFlags) -> Op {
        Op::Rename { from, to, flags }
    }

    /// A subvolume with a file and a directory, and a file beside it.
    fn model() -> (Model, impl Fn(&mut Model, Op) -> Outcome) {
        let mut model = Model::new(4096, Model::empty_root(0o755, NOW));
        model.add_subvolume(Model::ROOT, SUB, Model::empty_root(0o755, NOW));
        let apply = |model: &mut Model, op: Op| model.apply(&op, NOW);
        for place in [place(&[], 1), place(&[0], 1)] {
            let made = Op::Create {
                place,
                perm: 0o644,
                exclusive: true,
                truncate: false,
            };
            apply(&mut model, made).unwrap();
        }
        let perm = 0o755;
        let dir = place(&[], 3);
        apply(&mut model, Op::Mkdir { place: dir, perm }).unwrap();
        (model, apply)
    }

    #[test]
    fn no_name_crosses_into_a_subvolume() {
        let (mut model, apply) = model();
        let none = RenameFlags::empty();
        let refused = Err(Error::CrossDevice);
        let into = rename(place(&[], 1), place(&[0], 2), none);
        let out = rename(place(&[0], 1), place(&[], 2), none);
        let link = Op::Link {
            at: At::Path(vec![Name(1)]),
            place: place(&[0], 2),
        };
        for op in [into, out, link] {
            assert_eq!(apply(&mut model, op), refused);
        }
        let inside = rename(place(&[0], 1), place(&[0], 2), none);
        assert_eq!(apply(&mut model, inside), Ok(Answer::Done));
    }

    #[test]
    fn the_root_of_a_subvolume_moves_and_is_not_replaced() {
        let (mut model, apply) = model();
        let rmdir = || Op::Rmdir { place: place(&[], 0) };
        assert_eq!(apply(&mut model, rmdir()), Err(Error::NotEmpty));
        let over = rename(place(&[], 3), place(&[], 0), RenameFlags::empty());
        assert_eq!(apply(&mut model, over.clone()), Err(Error::NotEmpty));
        let gone = Op::Unlink { place: place(&[0], 1) };
        apply(&mut model, gone).unwrap();
        assert_eq!(apply(&mut model, rmdir()), Err(Error::NotPermitted));
        assert_eq!(apply(&mut model, over), Err(Error::NotEmpty));
        for (from, to, flags) in [
            (0, place(&[], 2), RenameFlags::empty()),
            (2, place(&[], 1), RenameFlags::EXCHANGE),
            (1, place(&[3], 7), RenameFlags::empty()),
        ] {
            let moved = rename(place(&[], from), to, flags);
            assert_eq!(apply(&mut model, moved), Ok(Answer::Done));
        }
        assert_eq!(model.subvolumes(), [[Name(3), Name(7)]]);
        let below_itself = rename(place(&[3], 7), place(&[3, 7], 1), RenameFlags::empty());
        assert_eq!(apply(&mut model, below_itself), Err(Error::Invalid));
    }
}
