//! What a snapshot of a tree does not have: flags, project ids, hints, maps of extents, statfs.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cowshed_harness::tree::{Kind, Tree};
use serde_json::Value;

use crate::cowshed::{binary, run_in};
use crate::raw::{ExtendedFlags, extended_flags};

/// Facts of a mount.
pub struct Facts {
    statfs: [u64; 7],
    flags: BTreeMap<PathBuf, ExtendedFlags>,
}

/// Of how many files in a directory flags are asked for.
const FLAGS_PER_DIR: usize = 300;

impl Facts {
    pub fn of(root: &Path) -> Result<Facts> {
        let stat = rustix::fs::statvfs(root)?;
        let mut facts = Facts {
            statfs: [
                stat.f_bsize,
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                stat.f_namemax,
            ],
            flags: BTreeMap::new(),
        };
        facts.look(root, root)?;
        Ok(facts)
    }

    fn look(&mut self, root: &Path, dir: &Path) -> Result<()> {
        let mut entries: Vec<_> = std::fs::read_dir(dir)?.collect::<std::io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let mut files = 0;
        for entry in entries {
            let kind = entry.file_type()?;
            files += usize::from(kind.is_file());
            if !kind.is_dir() && (!kind.is_file() || files > FLAGS_PER_DIR) {
                continue;
            }
            let path = entry.path();
            let file = File::options().read(true).custom_flags(libc::O_NOATIME).open(&path)?;
            let mut flags = extended_flags(&file).with_context(|| format!("flags of {}", path.display()))?;
            if kind.is_dir() {
                // Linux counts the bytes of a short form in units of 16.
                flags.extents = 0;
            }
            self.flags.insert(path.strip_prefix(root)?.to_owned(), flags);
            if kind.is_dir() {
                self.look(root, &path)?;
            }
        }
        Ok(())
    }

    pub fn ensure_same(&self, ours: &Facts) -> Result<()> {
        ensure!(
            self.statfs == ours.statfs,
            "statfs of the kernel {:?}, of Cowshed {:?}",
            self.statfs,
            ours.statfs
        );
        for (path, flags) in &self.flags {
            let found = ours.flags.get(path).context("the same files")?;
            ensure!(
                flags == found,
                "{}: flags of the kernel {flags:x?}, of Cowshed {found:x?}",
                path.display()
            );
        }
        Ok(())
    }
}

/// Maps of the files with the most data ranges, as `cowshed fiemap` shows them: on a mount of the
/// kernel's, or in an image.
pub fn maps(tree: &Tree, mount: Option<&Path>, image: &Path) -> Result<BTreeMap<PathBuf, Value>> {
    const FILES: usize = 12;
    let mut files: Vec<(usize, PathBuf)> = tree
        .nodes
        .iter()
        .filter_map(|(path, node)| match &node.kind {
            Kind::File(content) => Some((content.data.len(), PathBuf::from(path))),
            _ => None,
        })
        .collect();
    files.sort_by_key(|(ranges, path)| (std::cmp::Reverse(*ranges), path.clone()));
    files.truncate(FILES);
    let mut maps = BTreeMap::new();
    for (_, path) in files {
        let image = image.to_str().context("a path in UTF-8")?;
        let text = match mount {
            Some(root) => {
                let full = root.join(&path);
                let full = full.to_str().context("a path in UTF-8")?;
                run_in(Path::new("/"), binary()?, &["fiemap", "--json", full])?
            }
            None => {
                let path = path.to_str().context("a path in UTF-8")?;
                run_in(Path::new("/"), binary()?, &["fiemap", "--json", "-i", image, path])?
            }
        };
        let all: Value = serde_json::from_str(&text)?;
        let extents = all[0]["extents"].clone();
        ensure!(extents.is_array(), "no extents in {text}");
        maps.insert(path, extents);
    }
    Ok(maps)
}
