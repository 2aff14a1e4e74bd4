//! Damage to a sound volume: aimed at fields, mostly with checksums set right again, so that it
//! gets past them.

mod block;
mod values;

use std::sync::Arc;

use btrfs_format::items::{FieldLayout, Layout as _};
use btrfs_format::superblock::{CSUM_FIELD_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{KeyType, Superblock, view};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::Rng;

use crate::layout::{Block, Layout, Place, items_of};

/// Damage in the making.
pub struct Damage<'a> {
    devices: &'a [Arc<MemDevice>],
    layout: &'a Layout,
    /// What was done, for people.
    pub done: Vec<String>,
    /// This device shall end here.
    pub cut_at: Option<(usize, u64)>,
}

impl<'a> Damage<'a> {
    pub fn new(devices: &'a [Arc<MemDevice>], layout: &'a Layout) -> Self {
        Self {
            devices,
            layout,
            done: Vec::new(),
            cut_at: None,
        }
    }

    /// One more piece of damage.
    pub fn add(&mut self, rng: &mut Rng) {
        match rng.below(100) {
            0..68 => self.edit_block(rng),
            68..76 => self.edit_superblock(rng),
            76..80 => self.noise_in_block(rng),
            80..85 => self.swap_blocks(rng),
            85..88 => self.tear(rng),
            88..97 => self.edit_data(rng),
            97..98 => self.cut(rng),
            _ => self.noise(rng),
        }
    }

    fn pick<'b>(&'b self, rng: &mut Rng) -> &'a Block {
        &self.layout.blocks[rng.index(self.layout.blocks.len())]
    }

    fn write(&self, places: &[Place], bytes: &[u8]) {
        for &(device, offset) in places {
            // Damage may have made the place wrong.
            let _ = self.devices[device].write_at(offset, bytes);
        }
    }

    /// All copies, or sometimes only one.
    fn copies(&self, places: &[Place], rng: &mut Rng) -> Vec<Place> {
        if rng.one_in(15) {
            return vec![places[rng.index(places.len())]];
        }
        places.to_vec()
    }

    fn edit_block(&mut self, rng: &mut Rng) {
        // Leaves of file trees are many; every tree gets its share.
        let mut block = self.pick(rng);
        let owners: Vec<u64> = self.layout.blocks.iter().map(|b| b.owner).collect();
        if rng.one_in(2) {
            let owner = owners[rng.index(owners.len())];
            let same: Vec<_> = self.layout.blocks.iter().filter(|b| b.owner == owner).collect();
            block = same[rng.index(same.len())];
        }
        let mut bytes = self.layout.read(self.devices, block);
        let rounds = 1 + rng.below(2);
        for _ in 0..rounds {
            let what = block::edit(&mut bytes, self.layout, rng);
            self.done
                .push(format!("block {} of tree {}: {what}", block.addr, block.owner));
        }
        if !rng.one_in(30) {
            self.layout.seal(&mut bytes);
        }
        self.write(&self.copies(&block.copies, rng), &bytes);
    }

    fn edit_superblock(&mut self, rng: &mut Rng) {
        let device = rng.index(self.devices.len());
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        self.devices[device]
            .read_at(SUPERBLOCK_OFFSETS[0], &mut bytes)
            .expect("a device holds a superblock");
        let used = self.layout.sb.sys_chunk_array_size.get() as usize;
        let what = if rng.one_in(3) {
            let array = field("sys_chunk_array").offset_bytes;
            let at = rng.index(used.max(1));
            values::change(&mut bytes[array..array + used], at, 8, self.layout, rng);
            format!("system chunk byte {at}")
        } else {
            let fields = &Superblock::FIELDS[1..];
            let field = fields[rng.index(fields.len())];
            let at = rng.index(field.size_bytes);
            let at = if field.size_bytes <= 8 { 0 } else { at };
            let part = &mut bytes[field.offset_bytes..][..field.size_bytes];
            values::change(part, at, field.size_bytes.min(8), self.layout, rng);
            field.name.to_owned()
        };
        if !rng.one_in(20) {
            // What the changed type says.
            let ty = Superblock::FIELDS.iter().find(|f| f.name == "csum_type");
            let raw = ty.map_or(0, |f| {
                u16::from_le_bytes([bytes[f.offset_bytes], bytes[f.offset_bytes + 1]])
            });
            let ty = btrfs_format::ChecksumType::from_raw(raw).unwrap_or(self.layout.csum_type);
            let sum = ty.compute(&bytes[CSUM_FIELD_BYTES..]);
            bytes[..CSUM_FIELD_BYTES].copy_from_slice(&sum);
        }
        let _ = self.devices[device].write_at(SUPERBLOCK_OFFSETS[0], &bytes);
        self.done.push(format!("superblock of device {device}: {what}"));
    }

    fn noise_in_block(&mut self, rng: &mut Rng) {
        let block = self.pick(rng);
        let mut bytes = self.layout.read(self.devices, block);
        let start = rng.index(bytes.len());
        let len = (1 + rng.index(64)).min(bytes.len() - start);
        rng.fill(&mut bytes[start..start + len]);
        let sealed = !rng.one_in(3);
        if sealed {
            self.layout.seal(&mut bytes);
        }
        self.write(&self.copies(&block.copies, rng), &bytes);
        self.done.push(format!(
            "block {} of tree {}: noise at {start}+{len}, sealed {sealed}",
            block.addr, block.owner
        ));
    }

    /// A block takes another's place, its header as it was or made to fit.
    fn swap_blocks(&mut self, rng: &mut Rng) {
        let (from, to) = (self.pick(rng), self.pick(rng));
        let mut bytes = self.layout.read(self.devices, from);
        let old = self.layout.read(self.devices, to);
        let fit = rng.below(4);
        block::copy_identity(&mut bytes, &old, fit);
        self.layout.seal(&mut bytes);
        self.write(&self.copies(&to.copies, rng), &bytes);
        self.done.push(format!(
            "block {} holds block {}, made to fit {fit}",
            to.addr, from.addr
        ));
    }

    /// A block is half another, or half zeros.
    fn tear(&mut self, rng: &mut Rng) {
        let (from, to) = (self.pick(rng), self.pick(rng));
        let mut bytes = self.layout.read(self.devices, to);
        let middle = 512 * rng.index(bytes.len() / 512);
        let other = if rng.one_in(2) {
            vec![0; bytes.len()]
        } else {
            self.layout.read(self.devices, from)
        };
        bytes[middle..].copy_from_slice(&other[middle..]);
        if rng.one_in(2) {
            self.layout.seal(&mut bytes);
        }
        self.write(&self.copies(&to.copies, rng), &bytes);
        self.done.push(format!("block {} torn at {middle}", to.addr));
    }

    /// Bytes of a file, mostly with their checksum set right: what decompressors get to see.
    fn edit_data(&mut self, rng: &mut Rng) {
        let mut extents = Vec::new();
        let mut compressed = Vec::new();
        for block in self.layout.blocks.iter().filter(|b| b.level == 0) {
            for (key, data) in items_of(&self.layout.read(self.devices, block)) {
                if key.ty == KeyType::EXTENT_DATA
                    && let Some(view::FileExtentView::Regular(extent)) = view::file_extent(&data)
                    && extent.disk_bytenr.get() != 0
                {
                    let found = (extent.disk_bytenr.get(), extent.disk_num_bytes.get());
                    extents.push(found);
                    if extent.compression != 0 {
                        compressed.push(found);
                    }
                }
            }
        }
        if !compressed.is_empty() && !rng.one_in(4) {
            extents = compressed;
        }
        if extents.is_empty() {
            return self.edit_block(rng);
        }
        let (addr, len) = extents[rng.index(extents.len())];
        // The head is where the formats have their structure.
        let at = if rng.one_in(2) {
            rng.below(64.min(len.max(1)))
        } else {
            rng.below(len.max(1))
        };
        // An earlier piece of damage may have been to the address.
        let sector = addr.wrapping_add(at & !4095);
        let places = self.layout.places_of(sector);
        if places.is_empty() {
            return;
        }
        let mut bytes = vec![0; 4096];
        let (device, offset) = places[0];
        if self.devices[device].read_at(offset, &mut bytes).is_err() {
            return;
        }
        let width = 1 << rng.below(4);
        values::change(&mut bytes, (at & 4095) as usize, width, self.layout, rng);
        self.write(&self.copies(&places, rng), &bytes);
        let fixed = !rng.one_in(6) && self.fix_data_csum(sector, &bytes);
        self.done
            .push(format!("data of extent {addr} at {at}, checksum right: {fixed}"));
    }

    fn fix_data_csum(&self, sector: u64, data: &[u8]) -> bool {
        let sum = self.layout.csum_type.compute(data);
        let size = self.layout.csum_type.size_bytes();
        for block in self.layout.blocks.iter().filter(|b| b.level == 0 && b.owner == 7) {
            let mut bytes = self.layout.read(self.devices, block);
            let found = block::item_places(&bytes).into_iter().find_map(|(key, at, len)| {
                let index = (sector.checked_sub(key.offset)? / 4096) as usize * size;
                (key.ty == KeyType::EXTENT_CSUM && index + size <= len).then_some(at + index)
            });
            if let Some(at) = found {
                bytes[at..at + size].copy_from_slice(&sum[..size]);
                self.layout.seal(&mut bytes);
                self.write(&block.copies, &bytes);
                return true;
            }
        }
        false
    }

    fn cut(&mut self, rng: &mut Rng) {
        let index = rng.index(self.devices.len());
        let size = self.devices[index].size_bytes();
        let bytes = rng.below(size / 512) * 512;
        self.cut_at = Some((index, bytes));
        self.done.push(format!("device {index} ends at {bytes}"));
    }

    fn noise(&mut self, rng: &mut Rng) {
        let block = self.pick(rng);
        let (device, offset) = block.copies[rng.index(block.copies.len())];
        let mut bytes = vec![0; 1 << (9 + rng.below(8))];
        if !rng.one_in(3) {
            rng.fill(&mut bytes);
        }
        let _ = self.devices[device].write_at(offset, &bytes);
        self.done
            .push(format!("{} bytes of noise on device {device} at {offset}", bytes.len()));
    }
}

fn field(name: &str) -> FieldLayout {
    let found = Superblock::FIELDS.iter().find(|f| f.name == name);
    *found.expect("the superblock has this field")
}
