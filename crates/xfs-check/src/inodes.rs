//! Inodes of a group, with all that hangs on them.

use xfs_format::dir::FileType;
use xfs_format::features::{inode_flags, inode_flags2};
use xfs_format::inode::{Fork, ForkKind, InodeCore, mode};
use xfs_format::symlink::SymlinkBlock;
use xfs_format::{AgIno, Ino, Inode, Owner};

use crate::ag::{Chunk, Group, runs};
use crate::finding::{FindingId, Site};
use crate::fork::Mapped;
use crate::scan::Scan;
use crate::table::Info;
use crate::volume::{count, index};

impl Scan<'_> {
    /// Reads the inodes of a group. `step` is called for each chunk.
    pub(crate) fn chunks(&mut self, group: &Group, chunks: &[Chunk], step: &dyn Fn()) {
        for chunk in chunks {
            let places = self.infos.len();
            self.infos.resize(places.saturating_add(64), Info::NONE);
            self.chunk(group, chunk, places);
            step();
        }
    }

    fn chunk(&mut self, group: &Group, chunk: &Chunk, places: usize) {
        let geometry = self.vol.geometry;
        let first = geometry.ino_block(AgIno(chunk.start)).get();
        let inode_bytes = index(geometry.inode_bytes);
        for (block, blocks) in runs(chunk, geometry.inodes_per_block_log) {
            let start = xfs_format::AgBlock(first.saturating_add(block));
            let daddr = geometry.ag_daddr(group.number, start);
            let len = u64::from(blocks).saturating_mul(geometry.block_bytes.into());
            let Some(bytes) = self
                .vol
                .read(&mut self.sink, Site::block(group.number, start), daddr, len)
            else {
                continue;
            };
            let first_ino = start
                .get()
                .checked_shl(geometry.inodes_per_block_log.into())
                .unwrap_or_default();
            for (at, inode) in bytes.chunks_exact(inode_bytes).enumerate() {
                let within = first_ino.saturating_add(u32::try_from(at).unwrap_or_default());
                let Some(bit) = within.checked_sub(chunk.start).filter(|bit| *bit < 64) else {
                    continue;
                };
                let mask = 1_u64.checked_shl(bit).unwrap_or_default();
                if chunk.mask & mask == 0 {
                    continue;
                }
                self.info = Info::NONE;
                let ino = geometry.join_ino(group.number, AgIno(within));
                self.inode(ino, inode, chunk.free & mask != 0);
                if let Some(place) = self.infos.get_mut(places.saturating_add(index(bit))) {
                    *place = self.info;
                }
            }
        }
    }

    fn inode(&mut self, ino: Ino, bytes: &[u8], is_free: bool) {
        let vol = self.vol;
        let geometry = &vol.geometry;
        let Some((group, within)) = geometry.split_ino(ino) else {
            return;
        };
        let site = Site {
            inode: Some(ino),
            ..Site::block(group, geometry.ino_block(within))
        };
        let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
        let inode = match Inode::verify(bytes, &vol.expect(daddr, Owner::Inode(ino))) {
            Ok(inode) => inode,
            Err(fault) => return self.sink.corrupt(&fault, site, FindingId::InodeInvalid),
        };
        let core = inode.core();
        match (is_free, core.mode.get() == 0) {
            (true, true) => return,
            (false, true) => {
                self.sink.broken(
                    FindingId::InodeMissing,
                    site,
                    "mode is 0, but the inode is in use by its chunk",
                );
                return;
            }
            (true, false) => {
                let message = format!(
                    "mode is {:o}, expected 0: the inode is free by its chunk",
                    core.mode.get()
                );
                self.sink.broken(FindingId::InodeNotFree, site, message);
                return;
            }
            (false, false) => {}
        }
        let sums = &mut self.sink.report.statistics;
        sums.inodes = sums.inodes.saturating_add(1);
        self.info = Info {
            file_type: Some(FileType::from_mode(core.file_type())),
            has_reflink: core.has_flag2(inode_flags2::REFLINK),
            nlink: core.link_count(),
            generation: core.generation.get(),
            next_unlinked: core.next_unlinked.get(),
            ..Info::NONE
        };
        let site = Site::inode(ino);
        self.fields(site, &core);
        let data = self.map(site, &inode, ForkKind::Data);
        let attr = self.map(site, &inode, ForkKind::Attr);
        let blocks = data.blocks.saturating_add(attr.blocks);
        if data.is_whole && attr.is_whole && core.nblocks.get() != blocks {
            self.sink.add(
                FindingId::InodeBlocks,
                site,
                format!("nblocks is {}, expected {blocks}", core.nblocks),
            );
        }
        self.count_usage(ino, &core);
        match core.file_type() {
            mode::DIR => self.directory(site, &inode, &data),
            mode::SYMLINK => self.symlink(site, &inode, &data),
            mode::REGULAR if self.is_quota(ino) => self.quotas(site, &core, &data),
            _ => {}
        }
        self.attributes(site, &inode, &attr);
    }

    /// What the verifier of the format leaves open, because no reader depends on it.
    fn fields(&mut self, site: Site, core: &InodeCore) {
        let mut wrong = |message: String| self.sink.add(FindingId::InodeInvalid, site, message);
        let unknown = u64::from(core.flags.get()) & !inode_flags::KNOWN;
        if unknown != 0 {
            wrong(format!("flags has unknown bits {unknown:#x}"));
        }
        let unknown = core.flags2.get() & !inode_flags2::KNOWN;
        if core.version >= 3 && unknown != 0 {
            wrong(format!("flags2 has unknown bits {unknown:#x}"));
        }
        let is_special = matches!(core.file_type(), mode::FIFO | mode::CHAR | mode::BLOCK | mode::SOCKET);
        if is_special && core.size.get() != 0 {
            wrong(format!("size is {}, expected 0 of a special file", core.size));
        }
        let has_realtime = self.vol.geometry.has_realtime();
        if core.is_realtime() && !(has_realtime && core.file_type() == mode::REGULAR) {
            wrong("flags has REALTIME, but this is no file, or the volume has no realtime device".to_owned());
        }
        let dir_flags =
            inode_flags::RTINHERIT | inode_flags::PROJINHERIT | inode_flags::EXTSZINHERIT | inode_flags::NOSYMLINKS;
        let set = u64::from(core.flags.get()) & dir_flags;
        if core.file_type() != mode::DIR && set != 0 {
            wrong(format!("flags has {set:#x}, which only directories can have"));
        }
        if core.file_type() == mode::DIR && core.has_flag(inode_flags::REALTIME | inode_flags::EXTSIZE) {
            wrong("flags has REALTIME or EXTSIZE, which only files can have".to_owned());
        }
        if is_special && core.has_flag(inode_flags_of_special()) {
            wrong(format!("flags is {:#x}, of which a special file has none", core.flags));
        }
        let hints = inode_flags::EXTSIZE | inode_flags::EXTSZINHERIT;
        if core.has_flag(hints) && core.extsize.get() == 0 {
            wrong("flags has an extent size hint, extsize is 0".to_owned());
        }
        if core.has_flag2(inode_flags2::COWEXTSIZE) && core.cowextsize.get() == 0 {
            wrong("flags2 has COWEXTSIZE, cowextsize is 0".to_owned());
        }
        if core.version >= 3 && !core.has_flag2(inode_flags2::METADATA) && core.onlink.get() != 0 {
            wrong(format!("onlink is {}, expected 0", core.onlink));
        }
    }

    fn symlink(&mut self, site: Site, inode: &Inode, map: &Mapped) {
        let size = inode.core().size.get();
        let mut target = Vec::new();
        if let Some(Fork::Local(bytes)) = inode.fork(ForkKind::Data) {
            target.extend_from_slice(bytes);
        }
        for extent in &map.extents {
            let vol = self.vol;
            let Some(daddr) = vol.geometry.daddr(extent.start) else {
                return;
            };
            let site = site.with_block(&vol.geometry, extent.start);
            let len = u64::from(extent.blocks).saturating_mul(vol.geometry.block_bytes.into());
            if len > 1 << 16 {
                let message = format!("an extent of {} blocks, expected fewer", extent.blocks);
                return self.sink.add(FindingId::SymlinkInvalid, site, message);
            }
            let Some(bytes) = vol.read(&mut self.sink, site, daddr, len) else {
                return;
            };
            let expect = vol.expect_inode(extent.start, site.inode.unwrap_or_default());
            match SymlinkBlock::verify(bytes, &expect) {
                Ok(block) => {
                    if block
                        .offset_bytes()
                        .is_some_and(|offset| u64::from(offset) != count(target.len()))
                    {
                        let message = format!(
                            "offset is {}, expected {}",
                            block.offset_bytes().unwrap_or_default(),
                            target.len()
                        );
                        self.sink.add(FindingId::SymlinkInvalid, site, message);
                    }
                    target.extend_from_slice(block.part());
                }
                Err(fault) => return self.sink.corrupt(&fault, site, FindingId::SymlinkInvalid),
            }
        }
        let found = count(target.len());
        if found < size || (found > size && self.vol.geometry.is_v5()) {
            self.sink.add(
                FindingId::SymlinkInvalid,
                site,
                format!("size is {size}, the target has {found} bytes"),
            );
        }
        target.truncate(index(size));
        if target.contains(&0) {
            self.sink.add(FindingId::SymlinkInvalid, site, "the target holds a NUL");
        }
    }
}

fn inode_flags_of_special() -> u64 {
    inode_flags::REALTIME | inode_flags::EXTSIZE | inode_flags::RTINHERIT | inode_flags::EXTSZINHERIT
}
