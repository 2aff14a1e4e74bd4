//! Headers and B-trees of an allocation group.

use xfs_format::ag::{Agf, AgfSector, AgflSector, Agi, AgiSector};
use xfs_format::btree::{Bno, Cnt, Finobt, Inobt, InobtRecord, Refcount, RefcountRecord, Rmap, RmapOwner, TreeKind};
use xfs_format::features::ro_compat;
use xfs_format::{AgBlock, AgIno, AgNumber, CHUNK_INODES, Corrupt, Expect, Owner, U32};

use crate::claims::Claim;
use crate::finding::{FindingId, Sink, Site};
use crate::ledger::{Gather, Ledger, Which};
use crate::tree::{Child, Walk, walk};
use crate::volume::Volume;

/// A chunk of inodes, in use or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) start: u32,
    /// Inodes that are there.
    pub(crate) mask: u64,
    /// Free ones among them.
    pub(crate) free: u64,
}

/// What a group says about itself.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) number: AgNumber,
    pub(crate) agf: Option<Agf>,
    pub(crate) agi: Option<Agi>,
    /// All chunks, by number.
    pub(crate) chunks: Vec<Chunk>,
    /// The ledger has all records of the rmapbt.
    pub(crate) has_rmaps: bool,
    /// Likewise of the refcountbt.
    pub(crate) has_refcounts: bool,
    /// All claims of the group itself are known.
    pub(crate) is_whole: bool,
}

/// A tree as it was read.
struct Read<T> {
    records: Vec<T>,
    blocks: u32,
    is_whole: bool,
}

struct Reader<'a> {
    vol: &'a Volume,
    sink: &'a mut Sink,
    ledger: &'a Ledger,
    claims: Gather<'a>,
    /// The blocks of the last chunk of inodes.
    last_chunk: Option<Claim>,
    group: Group,
}

/// Reads and checks a group.
pub(crate) fn read(vol: &Volume, sink: &mut Sink, ledger: &Ledger, number: AgNumber) -> Group {
    let group = Group {
        number,
        agf: None,
        agi: None,
        chunks: Vec::new(),
        has_rmaps: false,
        has_refcounts: false,
        is_whole: true,
    };
    let mut reader = Reader {
        vol,
        sink,
        ledger,
        claims: Gather::new(ledger, Which::Claims),
        last_chunk: None,
        group,
    };
    let headers = vol.geometry.first_ag_block().get();
    reader.claim(Claim::new(AgBlock(0), headers, RmapOwner::FsHeaders));
    let (agf, agi) = (reader.agf(), reader.agi());
    match &agf {
        Some(agf) => reader.free_space(agf),
        None => reader.group.is_whole = false,
    }
    match &agi {
        Some(agi) => reader.inodes(agi),
        None => reader.group.is_whole = false,
    }
    reader.group.agf = agf;
    reader.group.agi = agi;
    reader.group
}

impl Reader<'_> {
    fn claim(&mut self, claim: Claim) {
        self.claims.push(self.group.number, claim);
    }

    fn header<T>(
        &mut self,
        sector: u32,
        id: FindingId,
        verify: impl FnOnce(Vec<u8>, &Expect<'_>) -> Result<T, Corrupt>,
    ) -> Option<T> {
        let (vol, number) = (self.vol, self.group.number);
        let daddr = vol.geometry.header_daddr(number, sector);
        let site = Site::group(number);
        let bytes = vol.read(self.sink, site, daddr, vol.geometry.sector_bytes.into())?;
        match verify(bytes, &vol.expect(daddr, Owner::Ag(number))) {
            Ok(header) => Some(header),
            Err(fault) => {
                self.sink.corrupt(&fault, site, id);
                None
            }
        }
    }

    fn agf(&mut self) -> Option<Agf> {
        let sector = self.header(1, FindingId::AgfInvalid, AgfSector::verify)?;
        Some(*sector.agf())
    }

    fn agi(&mut self) -> Option<Agi> {
        let sector = self.header(2, FindingId::AgiInvalid, AgiSector::verify)?;
        Some(*sector.agi())
    }

    fn site(&self) -> Site {
        Site::group(self.group.number)
    }

    /// Compares a count of a header with what was found.
    fn agree(&mut self, id: FindingId, name: &str, stated: u32, found: u64) {
        if u64::from(stated) != found {
            let site = self.site();
            self.sink.add(id, site, format!("{name} is {stated}, expected {found}"));
        }
    }

    fn tree<K: TreeKind<Ptr = U32>, T>(
        &mut self,
        root: U32,
        levels: U32,
        owner: RmapOwner,
        mut take: impl FnMut(&K::Record) -> Option<T>,
    ) -> Read<T> {
        let number = self.group.number;
        let mut read = Read {
            records: Vec::new(),
            blocks: 0,
            is_whole: false,
        };
        let roots = vec![Child { ptr: root, key: None }];
        let claims = &mut self.claims;
        let (blocks, records) = (&mut read.blocks, &mut read.records);
        read.is_whole = walk::<K>(
            self.vol,
            self.sink,
            &Walk::of_group(number, levels.get()),
            roots,
            &mut |group, block| {
                *blocks = blocks.saturating_add(1);
                claims.push(group, Claim::new(block, 1, owner));
            },
            &mut |_, _, found| records.extend(found.iter().filter_map(&mut take)),
        );
        self.group.is_whole &= read.is_whole;
        read
    }

    fn free_space(&mut self, agf: &Agf) {
        let spare = self.spare(agf);
        let extent = |record: &xfs_format::btree::AllocRecord| Some((record.startblock.get(), record.blockcount.get()));
        let bno = self.tree::<Bno, _>(agf.bnoroot, agf.bnolevel, RmapOwner::AgBtrees, extent);
        let cnt = self.tree::<Cnt, _>(agf.cntroot, agf.cntlevel, RmapOwner::AgBtrees, extent);
        let mut tree_blocks = bno
            .blocks
            .saturating_sub(1)
            .saturating_add(cnt.blocks.saturating_sub(1));
        let mut is_whole = bno.is_whole && cnt.is_whole;
        self.compare_free(&bno, cnt);
        if bno.is_whole {
            let free: u64 = bno.records.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
            let longest = bno.records.iter().map(|(_, blocks)| *blocks).max().unwrap_or_default();
            self.agree(FindingId::AgfCount, "freeblks", agf.freeblks.get(), free);
            self.agree(FindingId::AgfCount, "longest", agf.longest.get(), longest.into());
            let bytes = free.saturating_mul(self.vol.geometry.block_bytes.into());
            let sum = &mut self.sink.report.statistics.free_bytes;
            *sum = sum.saturating_add(bytes);
        }
        if self.vol.geometry.has_ro_compat(ro_compat::RMAPBT) {
            let number = self.group.number;
            let mut rmaps = Gather::new(self.ledger, Which::Rmaps);
            let rmap = self.tree::<Rmap, ()>(agf.rmaproot, agf.rmaplevel, RmapOwner::AgBtrees, |record| {
                rmaps.push(number, Claim::of_record(record));
                None
            });
            if rmap.is_whole {
                self.agree(
                    FindingId::AgfCount,
                    "rmapblocks",
                    agf.rmapblocks.get(),
                    rmap.blocks.into(),
                );
                self.group.has_rmaps = true;
            }
            is_whole &= rmap.is_whole;
            tree_blocks = tree_blocks.saturating_add(rmap.blocks.saturating_sub(1));
        }
        if is_whole {
            self.agree(
                FindingId::AgfCount,
                "btreeblks",
                agf.btreeblks.get(),
                tree_blocks.into(),
            );
        }
        if self.vol.geometry.has_reflink() {
            self.refcounts(agf);
        }
        self.compare_spare(&spare);
        for (start, blocks) in bno.records {
            self.claim(Claim::free(start, blocks));
        }
    }

    fn compare_free(&mut self, bno: &Read<(u32, u32)>, mut cnt: Read<(u32, u32)>) {
        let mut end = 0;
        for (start, blocks) in &bno.records {
            if *start < end {
                let site = Site::block(self.group.number, AgBlock(*start));
                let message =
                    format!("bnobt: a free extent of {blocks} blocks begins before {end}, the end of the one before");
                self.sink.add(FindingId::FreeSpaceMismatch, site, message);
            }
            end = start.saturating_add(*blocks);
        }
        if !(bno.is_whole && cnt.is_whole) {
            return;
        }
        cnt.records.sort_unstable();
        if bno.records == cnt.records {
            return;
        }
        for (one, other, has, lacks) in [
            (&bno.records, &cnt.records, "bnobt", "cntbt"),
            (&cnt.records, &bno.records, "cntbt", "bnobt"),
        ] {
            let other: std::collections::HashSet<_> = other.iter().collect();
            for extent in one.iter().filter(|extent| !other.contains(extent)) {
                let site = Site::block(self.group.number, AgBlock(extent.0));
                let message = format!("{} free blocks in the {has}, not in the {lacks}", extent.1);
                self.sink.add(FindingId::FreeSpaceMismatch, site, message);
            }
        }
    }

    /// Reads the AGFL.
    fn spare(&mut self, agf: &Agf) -> Vec<AgBlock> {
        let Some(agfl) = self.header(3, FindingId::AgflInvalid, AgflSector::verify) else {
            self.group.is_whole = false;
            return Vec::new();
        };
        let slots = u64::from(self.vol.geometry.agfl_slots());
        let (first, last) = (u64::from(agf.flfirst.get()), u64::from(agf.fllast.get()));
        let between = last
            .saturating_add(slots)
            .saturating_sub(first)
            .checked_rem(slots)
            .unwrap_or_default();
        let expected = between.saturating_add(1);
        // An empty list has its ends side by side.
        let found = u64::from(agf.flcount.get());
        if found != expected && !(found == 0 && expected == slots) {
            let site = self.site();
            let message = format!("flcount is {found}, expected {expected} by flfirst {first} and fllast {last}");
            self.sink.broken(FindingId::AgflInvalid, site, message);
        }
        agfl.blocks(agf)
    }

    fn compare_spare(&mut self, spare: &[AgBlock]) {
        let number = self.group.number;
        for (slot, block) in spare.iter().enumerate() {
            if self.vol.geometry.is_ag_block(number, *block) {
                self.claim(Claim::new(*block, 1, RmapOwner::AgBtrees));
                continue;
            }
            let site = Site {
                slot: u32::try_from(slot).ok(),
                ..Site::group(number)
            };
            self.sink.add(
                FindingId::AgflInvalid,
                site,
                format!("spare block {block}, expected a block of the group"),
            );
        }
    }

    fn refcounts(&mut self, agf: &Agf) {
        let number = self.group.number;
        let mut shared = Gather::new(self.ledger, Which::Refcounts);
        let take = |record: &RefcountRecord| {
            if record.is_cow_staging() {
                return Some((record.start(), record.blockcount.get()));
            }
            shared.push(number, Claim::references(record));
            None
        };
        let read = self.tree::<Refcount, _>(agf.refcntroot, agf.refcntlevel, RmapOwner::RefcountBtree, take);
        if !read.is_whole {
            return;
        }
        self.agree(
            FindingId::AgfCount,
            "refcntblocks",
            agf.refcntblocks.get(),
            read.blocks.into(),
        );
        for (start, blocks) in read.records {
            self.claim(Claim::new(start, blocks, RmapOwner::CowStaging));
            let site = Site::block(number, start);
            self.sink.add(FindingId::CowStaging, site, format!("{blocks} blocks"));
        }
        self.group.has_refcounts = true;
    }

    fn inodes(&mut self, agi: &Agi) {
        let geometry = self.vol.geometry;
        let take = |record: &InobtRecord| {
            Some(Chunk {
                start: record.startino.get(),
                mask: record.allocated_mask(&geometry),
                free: record.free.get() & record.allocated_mask(&geometry),
            })
        };
        let all = self.tree::<Inobt, _>(agi.root, agi.level, RmapOwner::InodeBtrees, take);
        let has_counts = geometry.has_ro_compat(ro_compat::INOBTCNT);
        if all.is_whole {
            let inodes: u64 = all.records.iter().map(|chunk| u64::from(chunk.mask.count_ones())).sum();
            let free: u64 = all.records.iter().map(|chunk| u64::from(chunk.free.count_ones())).sum();
            self.agree(FindingId::AgiCount, "count", agi.count.get(), inodes);
            self.agree(FindingId::AgiCount, "freecount", agi.freecount.get(), free);
            if has_counts {
                self.agree(
                    FindingId::AgiCount,
                    "ino_blocks",
                    agi.ino_blocks.get(),
                    all.blocks.into(),
                );
            }
        }
        if geometry.has_ro_compat(ro_compat::FINOBT) {
            let free = self.tree::<Finobt, _>(agi.free_root, agi.free_level, RmapOwner::InodeBtrees, take);
            if free.is_whole && has_counts {
                self.agree(
                    FindingId::AgiCount,
                    "fino_blocks",
                    agi.fino_blocks.get(),
                    free.blocks.into(),
                );
            }
            if free.is_whole && all.is_whole {
                self.compare_chunks(&all.records, &free.records);
            }
        }
        let mut end = 0;
        for chunk in all.records {
            self.check_chunk(&chunk, end);
            end = chunk.start.saturating_add(CHUNK_INODES);
            self.group.chunks.push(chunk);
        }
    }

    fn compare_chunks(&mut self, all: &[Chunk], free: &[Chunk]) {
        let expected: Vec<Chunk> = all.iter().filter(|chunk| chunk.free != 0).copied().collect();
        let number = self.group.number;
        let mut differ = |chunk: &Chunk, what: &str| {
            let site = Site::inode(self.vol.geometry.join_ino(number, AgIno(chunk.start)));
            self.sink.add(
                FindingId::FinobtMismatch,
                site,
                format!("chunk with free inodes {:#018x}: {what}", chunk.free),
            );
        };
        for chunk in &expected {
            match free.binary_search_by_key(&chunk.start, |chunk| chunk.start) {
                Ok(at) if free.get(at) == Some(chunk) => {}
                Ok(at) => {
                    let found = free.get(at).map_or(0, |chunk| chunk.free);
                    differ(chunk, &format!("the finobt says {found:#018x}"));
                }
                Err(_) => differ(chunk, "not in the finobt"),
            }
        }
        for chunk in free {
            if expected
                .binary_search_by_key(&chunk.start, |chunk| chunk.start)
                .is_err()
            {
                differ(
                    chunk,
                    "in the finobt, but not in the inobt, or without free inodes there",
                );
            }
        }
    }

    /// Claims the blocks of a chunk.
    fn check_chunk(&mut self, chunk: &Chunk, end: u32) {
        let (number, geometry) = (self.group.number, self.vol.geometry);
        let site = Site::inode(geometry.join_ino(number, AgIno(chunk.start)));
        if chunk.start < end {
            let message = format!("the chunk begins before inode {end} of the group, the end of the one before");
            self.sink.add(FindingId::ChunkInvalid, site, message);
        }
        let first = geometry.ino_block(AgIno(chunk.start)).get();
        let align = self.vol.superblock.inoalignmt.get();
        let is_sparse_aligned = chunk.mask == u64::MAX || geometry.has_sparse_chunks();
        if geometry.has_version_bit(xfs_format::features::version::ALIGN)
            && is_sparse_aligned
            && first.checked_rem(align).is_some_and(|rest| rest != 0)
        {
            let message = format!("the chunk begins at block {first}, expected a multiple of {align}");
            self.sink.add(FindingId::ChunkInvalid, site, message);
        }
        for (block, blocks) in runs(chunk, geometry.inodes_per_block_log) {
            let claim = Claim::new(AgBlock(first.saturating_add(block)), blocks, RmapOwner::Inodes);
            // A large block holds several chunks.
            if self.last_chunk != Some(claim) || geometry.inodes_per_block_log <= 6 {
                self.claim(claim);
            }
            self.last_chunk = Some(claim);
        }
    }
}

/// Runs of blocks of a chunk that are there: first block within the chunk, and number.
pub(crate) fn runs(chunk: &Chunk, inodes_per_block_log: u8) -> Vec<(u32, u32)> {
    let per_block = 1_u32.checked_shl(inodes_per_block_log.into()).unwrap_or(1).max(1);
    let blocks = CHUNK_INODES.checked_div(per_block).unwrap_or(1).max(1);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for block in 0..blocks {
        let bit = chunk
            .mask
            .checked_shr(block.saturating_mul(per_block))
            .unwrap_or_default();
        if bit & 1 == 0 {
            continue;
        }
        match runs.last_mut() {
            Some((start, len)) if start.saturating_add(*len) == block => *len = len.saturating_add(1),
            _ => runs.push((block, 1)),
        }
    }
    runs
}

impl Group {
    /// True where an inode of the group is there and in use.
    pub(crate) fn is_used(&self, ino: AgIno) -> bool {
        self.chunk_of(ino)
            .is_some_and(|(chunk, bit)| chunk.mask & !chunk.free & bit != 0)
    }
    /// The chunk of an inode, and its bit.
    pub(crate) fn chunk_of(&self, ino: AgIno) -> Option<(&Chunk, u64)> {
        let at = self.chunks.partition_point(|chunk| chunk.start <= ino.get());
        let chunk = self.chunks.get(at.checked_sub(1)?)?;
        let bit = 1_u64.checked_shl(ino.get().saturating_sub(chunk.start))?;
        Some((chunk, bit))
    }
}
