//! Reading trees for inspection: any block at any address, and items in order. Shares the chunk map
//! with the engine, not its tree code, and goes on where a block is bad.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use btrfs_format::{BlockExpect, Key, KeyType, LogicalAddr, TreeBlock, TreeId, view};
use btrfs_store::volume::{OpenOptions, Piece, Rescue, Volume};
use cowshed_device::Locking;

use crate::block_devices::with_others;
use crate::devices;

pub struct Reader {
    pub volume: Arc<Volume>,
}

/// Takes the items of a tree, in order; `false` ends the walk.
pub type Take<'a> = &'a mut dyn FnMut(&Key, &[u8]) -> bool;

impl Reader {
    pub fn open(targets: &[PathBuf]) -> Result<Reader> {
        let rescue = Rescue {
            ignore_super_flags: true,
            ..Rescue::default()
        };
        Self::open_with(targets, rescue)
    }

    /// Also where a chunk leaves its device, or the chunk tree cannot be read: then what is left of
    /// its leaves is used.
    pub fn open_to_search(targets: &[PathBuf]) -> Result<Reader> {
        let mut rescue = Rescue {
            ignore_super_flags: true,
            ignore_bad_roots: true,
            ..Rescue::default()
        };
        Self::open_with(targets, rescue).or_else(|error| {
            rescue.salvage = true;
            Self::open_with(targets, rescue).map_err(|_| error)
        })
    }

    pub fn open_with(targets: &[PathBuf], rescue: Rescue) -> Result<Reader> {
        let options = OpenOptions {
            read_only: true,
            degraded: true,
            rescue,
            ..OpenOptions::default()
        };
        let devices = devices::open_to_read(&with_others(targets), Locking::Unlocked)?;
        let volume = Volume::open(devices, &options).with_context(|| targets[0].display().to_string())?;
        Ok(Reader { volume })
    }

    /// The tree block at an address: its first copy that is intact.
    pub fn block(&self, addr: u64) -> Result<TreeBlock> {
        let sectorsize_bytes = self.volume.sectorsize_bytes();
        if !addr.is_multiple_of(sectorsize_bytes.into()) {
            bail!("address {addr} is not a multiple of {sectorsize_bytes}");
        }
        let expect = BlockExpect {
            addr: LogicalAddr(addr),
            fsid: self.volume.metadata_fsid(),
            csum_type: self.volume.csum_type(),
            sectorsize_bytes,
            level: None,
            generation: None,
            first_key: None,
            tree: None,
        };
        let pieces = self
            .volume
            .map(LogicalAddr(addr), self.volume.nodesize_bytes().into())?;
        let copies = pieces.first().map_or(0, |piece| piece.copies.len());
        let mut first_error = None;
        for copy in 0..copies {
            let read = self
                .copy(&pieces, copy)
                .and_then(|bytes| Ok(TreeBlock::verify(bytes, &expect)?));
            match read {
                Ok(block) => return Ok(block),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            Some(error) => Err(error),
            None => bail!("address {addr} has no copy"),
        }
    }

    fn copy(&self, pieces: &[Piece], copy: usize) -> Result<Vec<u8>> {
        let devices = self.volume.devices();
        let mut bytes = Vec::new();
        for piece in pieces {
            let Some(place) = piece.copies.get(copy) else {
                bail!("no copy {copy} at {}", piece.logical)
            };
            let device = devices
                .iter()
                .find(|d| d.devid == place.dev)
                .and_then(|d| d.device.clone())
                .with_context(|| format!("device {} is missing", place.dev))?;
            let start = bytes.len();
            bytes.resize(start + usize::try_from(piece.len_bytes)?, 0);
            device.read_at(place.offset, &mut bytes[start..])?;
        }
        Ok(bytes)
    }

    /// Address of a tree's root block; `None` where there is no such tree.
    pub fn root(&self, tree: TreeId) -> Result<Option<u64>> {
        let sb = self.volume.superblock();
        match tree {
            TreeId::ROOT => return Ok(Some(sb.root.get())),
            TreeId::CHUNK => return Ok(Some(sb.chunk_root.get())),
            TreeId::TREE_LOG => return Ok(Some(sb.log_root.get()).filter(|addr| *addr != 0)),
            _ => {}
        }
        let last = Key::new(tree.object_id(), KeyType::ROOT_ITEM, u64::MAX);
        let found = self.floor(sb.root.get(), &last)?;
        Ok(found
            .filter(|(key, _)| key.objectid == last.objectid && key.ty == last.ty)
            .and_then(|(_, data)| Some(view::root_item(&data)?.bytenr.get())))
    }

    /// The item with the largest key that is not above `key`.
    pub fn floor(&self, root: u64, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let block = self.block(root)?;
        self.floor_in(&block, key)
    }

    fn floor_in(&self, block: &TreeBlock, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let above = match block.search(key) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        };
        for slot in (0..above).rev() {
            if block.is_leaf() {
                let (key, data) = block.item(slot);
                return Ok(Some((key, data.to_vec())));
            }
            if let Some(found) = self.floor_in(&self.child(block, slot)?, key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A child, which must lie one level lower: so that every walk ends.
    pub fn child(&self, parent: &TreeBlock, slot: usize) -> Result<TreeBlock> {
        let (addr, _) = parent.child(slot);
        let child = self.block(addr.get())?;
        if child.level() + 1 != parent.level() {
            bail!(
                "block {addr} of level {} hangs below one of level {}",
                child.level(),
                parent.level()
            );
        }
        Ok(child)
    }

    /// Key, root block and level of each tree that the root tree names.
    pub fn roots(&self) -> Result<Vec<(Key, u64, u8)>> {
        let mut roots = Vec::new();
        self.items(self.volume.superblock().root.get(), &Key::MIN, &mut |key, data| {
            if key.ty == KeyType::ROOT_ITEM
                && let Some(item) = view::root_item(data)
            {
                roots.push((*key, item.bytenr.get(), item.level));
            }
            true
        })?;
        Ok(roots)
    }

    /// As [`Reader::roots`], of the blocks of the root tree that can be read; `complain` is told of
    /// the others. Errors: that of the root.
    pub fn roots_left(&self, complain: &mut dyn FnMut(anyhow::Error)) -> Result<Vec<(Key, u64, u8)>> {
        let (mut roots, mut seen) = (Vec::new(), HashSet::new());
        let mut todo = vec![self.block(self.volume.superblock().root.get())?];
        while let Some(block) = todo.pop() {
            for slot in (0..block.key_ptrs().len()).rev() {
                // Nodes of a damaged tree may share blocks.
                if !seen.insert(block.child(slot).0) {
                    continue;
                }
                match self.child(&block, slot) {
                    Ok(child) => todo.push(child),
                    Err(error) => complain(error),
                }
            }
            for slot in 0..block.item_headers().len() {
                let (key, data) = block.item(slot);
                let item = view::root_item(data).filter(|_| key.ty == KeyType::ROOT_ITEM);
                roots.extend(item.map(|item| (key, item.bytenr.get(), item.level)));
            }
        }
        Ok(roots)
    }

    /// Hands over all items from `from` on, until `take` has enough.
    pub fn items(&self, root: u64, from: &Key, take: Take<'_>) -> Result<()> {
        let block = self.block(root)?;
        self.items_in(&block, from, take).map(drop)
    }

    fn items_in(&self, block: &TreeBlock, from: &Key, take: Take<'_>) -> Result<bool> {
        if block.is_leaf() {
            let (Ok(first) | Err(first)) = block.search(from);
            for slot in first..block.len() {
                let (key, data) = block.item(slot);
                if !take(&key, data) {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        for slot in block.child_slot(from)..block.len() {
            if !self.items_in(&self.child(block, slot)?, from, take)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
