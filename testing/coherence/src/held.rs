//! Descriptors that stay open while names change: what they show, through the caches and past them.

use std::fs::File;

use crate::map::SharedMap;
use crate::view::{self, Seen};

/// Something open.
#[derive(Debug)]
pub struct Held {
    /// `@` and the path by which it was opened.
    pub label: String,
    pub file: File,
    pub map: Option<SharedMap>,
    /// A file, open for reading and writing.
    pub is_writable: bool,
}

impl Held {
    pub fn file(path: &str, file: File) -> Held {
        Held {
            label: format!("@{path}"),
            file,
            map: None,
            is_writable: true,
        }
    }

    pub fn dir(path: &str, file: File) -> Held {
        Held {
            is_writable: false,
            ..Held::file(path, file)
        }
    }

    /// Attributes by fstat, and contents by read and, if there is a mapping since earlier, by that.
    pub fn look(&mut self, seed: u64) -> Seen {
        let mut seen = view::of_open(&self.file, seed);
        if !self.is_writable {
            // After rmdir of a subvolume Linux shows no links, until it asks: btrfs leaves one.
            seen.known.remove("nlink");
            seen.fresh.remove("nlink");
            return seen;
        }
        let read = view::read(&self.file);
        if let (Some(map), Ok(bytes)) = (&mut self.map, &read) {
            let len = bytes.len().min(map.len());
            let mapped = match len {
                0 => Ok(Vec::new()),
                len => map.load(0, len),
            };
            let mapped = view::content(&mapped);
            seen.known.insert("held map".into(), mapped);
            seen.fresh
                .insert("held map".into(), view::content(&Ok(bytes[..len].to_vec())));
        }
        seen.known.insert("read".into(), view::content(&read));
        seen
    }
}
