//! How each file is stored: compression and flags.

use std::collections::HashMap;

use btrfs_format::features::inode_flags;
use btrfs_image::build::{FilePolicy, Packer, Policy};
use cowshed_source::{Body, InodeId, Tree};
use cowshed_vfs::Compression;

use super::error::{Error, Result};
use super::filter::Pattern;
use super::packer::EnginePacker;

/// What is said about how files are stored.
#[derive(Clone, Debug, Default)]
pub(super) struct Storage {
    pub(super) compress: Option<Compression>,
    /// For files that match; the last one that does counts. `None`: not compressed.
    pub(super) compress_matching: Vec<(Pattern, Option<Compression>)>,
    /// Flags of what matches.
    pub(super) chattr: Vec<(Pattern, u64)>,
    /// Flags of a path and of all below.
    pub(super) flags: Vec<(Vec<u8>, u64)>,
}

/// Flags by the letters of chattr(1).
pub(super) fn flags_of_letters(letters: &str) -> Result<u64> {
    let mut flags = 0;
    for letter in letters.trim_start_matches(['+', '=']).chars() {
        flags |= match letter {
            'a' => inode_flags::APPEND,
            'A' => inode_flags::NOATIME,
            'c' => inode_flags::COMPRESS,
            'C' => inode_flags::NODATACOW,
            'd' => inode_flags::NODUMP,
            'D' => inode_flags::DIRSYNC,
            'i' => inode_flags::IMMUTABLE,
            'm' => inode_flags::NOCOMPRESS,
            'S' => inode_flags::SYNC,
            other => {
                return Err(Error::Option(format!("'{other}' is no flag: aAcCdDimS are")));
            }
        };
    }
    Ok(flags)
}

/// How each file is stored.
pub(super) struct Policies {
    packers: Vec<(Compression, EnginePacker)>,
    default: Option<usize>,
    packer_of: HashMap<InodeId, Option<usize>>,
    flags_of: HashMap<InodeId, u64>,
}

impl Policies {
    pub(super) fn new(tree: &Tree, storage: &Storage) -> Result<Self> {
        let mut policies = Self {
            packers: Vec::new(),
            default: None,
            packer_of: HashMap::new(),
            flags_of: HashMap::new(),
        };
        policies.default = storage.compress.map(|how| policies.packer(how));
        if !storage.compress_matching.is_empty() {
            walk(tree, Tree::ROOT, Vec::new(), &mut |path, id| {
                let mut matching = storage.compress_matching.iter().rev();
                if let Some((_, how)) = matching.find(|(pattern, _)| pattern.matches(path)) {
                    let packer = how.map(|how| policies.packer(how));
                    policies.packer_of.insert(id, packer);
                }
            });
        }
        if !storage.chattr.is_empty() {
            walk(tree, Tree::ROOT, Vec::new(), &mut |path, id| {
                for (_, flags) in storage.chattr.iter().filter(|(pattern, _)| pattern.matches(path)) {
                    *policies.flags_of.entry(id).or_default() |= flags;
                }
            });
        }
        for (path, flags) in &storage.flags {
            let id = tree.lookup(path)?;
            let id = id.ok_or_else(|| {
                let path = String::from_utf8_lossy(path);
                Error::Option(format!("'{path}' is to get inode flags and is not there"))
            })?;
            *policies.flags_of.entry(id).or_default() |= flags;
            walk(tree, id, path.clone(), &mut |_, id| {
                *policies.flags_of.entry(id).or_default() |= flags;
            });
        }
        for (id, flags) in &mut policies.flags_of {
            let is_file = matches!(tree[*id].body, Body::File(_));
            if is_file && *flags & inode_flags::NODATACOW != 0 {
                *flags |= inode_flags::NODATASUM;
            }
            if matches!(tree[*id].body, Body::Symlink(_)) {
                *flags = 0;
            }
        }
        Ok(policies)
    }

    /// Files for which this is equal are stored in the same way.
    pub(super) fn how(&self, id: InodeId) -> (Option<usize>, u64) {
        let flags = self.flags_of.get(&id).copied().unwrap_or_default();
        match flags & (inode_flags::NOCOMPRESS | inode_flags::NODATASUM | inode_flags::NODATACOW) {
            0 => (self.packer_of.get(&id).copied().unwrap_or(self.default), 0),
            off => (None, off & !inode_flags::NOCOMPRESS),
        }
    }

    fn packer(&mut self, how: Compression) -> usize {
        if let Some(known) = self.packers.iter().position(|(known, _)| *known == how) {
            return known;
        }
        self.packers.push((how, EnginePacker::new(how)));
        self.packers.len() - 1
    }
}

impl Policy for Policies {
    fn of(&self, id: InodeId) -> FilePolicy<'_> {
        let packer = self.how(id).0.and_then(|index| self.packers.get(index));
        FilePolicy {
            packer: packer.map(|(_, packer)| packer as &dyn Packer),
            inode_flags: self.flags_of.get(&id).copied().unwrap_or_default(),
        }
    }
}

/// Calls with path and number of everything below a directory.
pub(super) fn walk(tree: &Tree, dir: InodeId, path: Vec<u8>, found: &mut dyn FnMut(&[u8], InodeId)) {
    let mut todo = vec![(path, dir)];
    while let Some((path, dir)) = todo.pop() {
        for (name, id) in tree.entries(dir).into_iter().flatten() {
            let below = match path.is_empty() {
                true => name.to_vec(),
                false => [&path, &b"/"[..], name].concat(),
            };
            found(&below, *id);
            if matches!(tree[*id].body, Body::Dir(_)) {
                todo.push((below, *id));
            }
        }
    }
}
