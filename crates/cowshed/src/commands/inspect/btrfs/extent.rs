//! `inspect extent`: what lies at a logical address: its chunk, its places on devices, the extent,
//! and its back references.

use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfs_format::features::{extent_flags, flag_names};
use btrfs_format::render::tree_text;
use btrfs_format::view::{BackRef, ExtentView, FileExtentView};
use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId, view};
use clap::Args;
use serde_json::{Value, json};

use super::super::targets::{Targets, address};
use super::chunk::type_text;
use super::reader::Reader;

/// Directories above a file that its path is followed through.
const PATH_DEPTH_MAX: usize = 4096;

#[derive(Args, Debug)]
pub struct ExtentArgs {
    /// Logical address, anywhere in an extent
    #[arg(value_parser = address)]
    address: u64,
    #[command(flatten)]
    targets: Targets,
}

/// An extent and its references.
pub struct Extent {
    pub start: u64,
    length_bytes: u64,
    flags: u64,
    generation: u64,
    refs: u64,
    pub back_refs: Vec<BackRef>,
}

impl Extent {
    pub fn is_tree_block(&self) -> bool {
        self.flags & extent_flags::TREE_BLOCK != 0
    }
}

impl ExtentArgs {
    pub fn targets(&self) -> &[PathBuf] {
        &self.targets.targets
    }
}

pub fn run(args: &ExtentArgs) -> Result<u8> {
    let reader = Reader::open(&args.targets.targets)?;
    let chunks = reader.volume.chunks();
    let Some(chunk) = chunks.lookup(LogicalAddr(args.address)) else {
        bail!(
            "address {} lies in no chunk; `cowshed inspect chunk` lists them",
            args.address
        )
    };
    let places = reader.volume.map(LogicalAddr(args.address), 1)?;
    let places: Vec<(u64, u64)> = places
        .iter()
        .flat_map(|piece| piece.copies.iter().map(|at| (at.dev.get(), at.offset)))
        .collect();
    let extent = find(&reader, args.address)?;
    let mut lines = vec![format!(
        "address {} in chunk {} length {} type {} profile {}",
        args.address,
        chunk.logical(),
        chunk.length_bytes(),
        type_text(chunk.flags()),
        chunk.profile().name()
    )];
    lines.extend(places.iter().map(|(dev, at)| format!("\tdevice {dev} offset {at}")));
    let mut value = json!({
        "address": args.address,
        "chunk": chunk.logical().get(),
        "places": places.iter().map(|(dev, at)| json!({ "devid": dev, "offset": at })).collect::<Vec<_>>(),
        "extent": null,
    });
    match &extent {
        None => lines.push("free: no extent is here".into()),
        Some(extent) => describe(&reader, extent, &mut lines, &mut value)?,
    }
    let text = if args.targets.json {
        format!("{value:#}\n")
    } else {
        lines.join("\n") + "\n"
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(0)
}

/// The extent that covers an address.
pub fn find(reader: &Reader, addr: u64) -> Result<Option<Extent>> {
    let Some(root) = reader.root(TreeId::EXTENT)? else {
        bail!("there is no extent tree")
    };
    // Other items (block groups, references) lie between the extents: down to the next one.
    let mut key = Key::new(ObjectId(addr), KeyType(u8::MAX), u64::MAX);
    let (key, data) = loop {
        match reader.floor(root, &key)? {
            Some((found, data)) if matches!(found.ty, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM) => {
                break (found, data);
            }
            Some((found, _)) => match found.prev() {
                Some(prev) => key = prev,
                None => return Ok(None),
            },
            None => return Ok(None),
        }
    };
    let length_bytes = match key.ty {
        KeyType::EXTENT_ITEM => key.offset,
        _ => reader.volume.nodesize_bytes().into(),
    };
    let start = key.objectid.get();
    let Some(item) = ExtentView::new(&key, &data).filter(|_| addr - start < length_bytes) else {
        return Ok(None);
    };
    let mut back_refs: Vec<BackRef> = item.inline_refs().collect();
    reader.items(root, &key, &mut |other, data| {
        back_refs.extend(view::keyed_back_ref(other, data).filter(|_| other.objectid == key.objectid));
        other.objectid == key.objectid
    })?;
    Ok(Some(Extent {
        start,
        length_bytes,
        flags: item.head.flags.get(),
        generation: item.head.generation.get(),
        refs: item.head.refs.get(),
        back_refs,
    }))
}

fn describe(reader: &Reader, extent: &Extent, lines: &mut Vec<String>, value: &mut Value) -> Result<()> {
    let flags = flag_names(extent.flags, extent_flags::NAMES);
    lines.push(format!(
        "extent {} length {} refs {} generation {} flags {}",
        extent.start,
        extent.length_bytes,
        extent.refs,
        extent.generation,
        flags.join("|")
    ));
    if extent.flags & extent_flags::TREE_BLOCK != 0 {
        match reader.block(extent.start) {
            Ok(block) => lines.push(format!(
                "\ttree block of tree {} level {} items {} generation {}",
                tree_text(block.owner()),
                block.level(),
                block.len(),
                block.generation()
            )),
            Err(error) => lines.push(format!("\ttree block that cannot be read: {error:#}")),
        }
    }
    let mut refs = Vec::new();
    for back_ref in &extent.back_refs {
        let (line, json) = describe_ref(reader, extent, back_ref);
        lines.push(line);
        refs.push(json);
    }
    value["extent"] = json!({
        "start": extent.start,
        "length": extent.length_bytes,
        "refs": extent.refs,
        "generation": extent.generation,
        "flags": flags,
        "back_refs": refs,
    });
    Ok(())
}

fn describe_ref(reader: &Reader, extent: &Extent, back_ref: &BackRef) -> (String, Value) {
    match *back_ref {
        BackRef::TreeBlock { root } => (
            format!("\treferred to by tree {}", tree_text(TreeId(root))),
            json!({ "type": "tree", "tree": root }),
        ),
        BackRef::SharedBlock { parent } => (
            format!("\treferred to by the block at {parent}"),
            json!({ "type": "shared-block", "parent": parent }),
        ),
        BackRef::ExtentData {
            root,
            objectid,
            offset,
            count,
        } => {
            let path = path_of(reader, TreeId(root), objectid);
            let shown = path.as_deref().unwrap_or("(no path)");
            (
                format!("\treferred to by tree {root} inode {objectid} offset {offset} count {count} {shown}"),
                json!({
                    "type": "file", "tree": root, "inode": objectid, "offset": offset, "count": count, "path": path,
                }),
            )
        }
        BackRef::SharedData { parent, count } => {
            let inodes = inodes_in(reader, parent, extent.start);
            (
                format!("\treferred to by the leaf at {parent} count {count} inodes {inodes:?}"),
                json!({ "type": "shared-leaf", "parent": parent, "count": count, "inodes": inodes }),
            )
        }
        BackRef::Owner { root } => (
            format!("\tfirst written by tree {root}"),
            json!({ "type": "owner", "tree": root }),
        ),
    }
}

/// The inodes in a leaf whose extents point here.
pub fn inodes_in(reader: &Reader, leaf: u64, start: u64) -> Vec<u64> {
    let Ok(block) = reader.block(leaf) else {
        return Vec::new();
    };
    let mut inodes = Vec::new();
    for slot in 0..if block.is_leaf() { block.len() } else { 0 } {
        let (key, data) = block.item(slot);
        if key.ty == KeyType::EXTENT_DATA
            && let Some(FileExtentView::Regular(extent)) = view::file_extent(data)
            && extent.disk_bytenr.get() == start
            && inodes.last() != Some(&key.objectid.get())
        {
            inodes.push(key.objectid.get());
        }
    }
    inodes
}

/// A path of an inode within its subvolume: the first name of each.
fn path_of(reader: &Reader, tree: TreeId, inode: u64) -> Option<String> {
    let root = reader.root(tree).ok()??;
    let mut names = Vec::new();
    let mut at = inode;
    for _ in 0..PATH_DEPTH_MAX {
        if at == ObjectId::FIRST_FREE.get() {
            names.reverse();
            return Some(format!("/{}", names.join("/")));
        }
        let from = Key::new(ObjectId(at), KeyType::INODE_REF, 0);
        let mut found = None;
        let walked = reader.items(root, &from, &mut |key, data| {
            if key.objectid == from.objectid && key.ty == KeyType::INODE_REF {
                found = view::inode_refs(data)
                    .next()
                    .map(|(_, name)| (key.offset, name.to_vec()));
            } else if key.objectid == from.objectid && key.ty == KeyType::INODE_EXTREF {
                found = view::inode_extrefs(data)
                    .next()
                    .map(|(head, name)| (head.parent_objectid.get(), name.to_vec()));
            }
            false
        });
        walked.ok()?;
        let (parent, name) = found?;
        names.push(crate::people::printable(std::ffi::OsString::from_vec(name)));
        at = parent;
    }
    None
}
