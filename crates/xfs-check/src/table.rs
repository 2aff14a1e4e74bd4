//! What is kept of every inode until links are judged: 56 bytes each.

use xfs_format::dir::FileType;
use xfs_format::{AgIno, AgNumber, Geometry, Ino};

use crate::ag::Group;
use crate::volume::index;

/// An inode as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    /// `None` for one that is free, or was not read.
    pub(crate) file_type: Option<FileType>,
    pub(crate) has_reflink: bool,
    pub(crate) is_on_unlinked_list: bool,
    pub(crate) is_connected: bool,
    pub(crate) nlink: u32,
    pub(crate) generation: u32,
    pub(crate) next_unlinked: u32,
    /// Entries that lead to it.
    pub(crate) names: u32,
    /// Directories in it.
    pub(crate) subdirs: u32,
    /// ".." of a directory.
    pub(crate) dotdot: Option<Ino>,
    /// Hashes of its names, less those of its parent pointers.
    pub(crate) balance: u64,
}

impl Info {
    pub(crate) const NONE: Self = Self {
        file_type: None,
        has_reflink: false,
        is_on_unlinked_list: false,
        is_connected: false,
        nlink: 0,
        generation: 0,
        next_unlinked: AgIno::NULL,
        names: 0,
        subdirs: 0,
        dotdot: None,
        balance: 0,
    };

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type == Some(FileType::Dir)
    }
}

/// All inodes: for each group 64 places for each chunk.
pub(crate) struct Table<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) groups: &'a [Group],
    pub(crate) infos: Vec<Vec<Info>>,
    /// All of the volume could be read, so that sums and comparisons mean something.
    pub(crate) is_whole: bool,
}

/// The place of an inode: group, chunk, and bit in the chunk. `None` where no chunk has it.
fn place(geometry: &Geometry, groups: &[Group], ino: Ino) -> Option<(usize, usize, u32)> {
    let (group, within) = geometry.split_ino(ino)?;
    let chunks = &groups.get(index(group.get()))?.chunks;
    let at = chunks
        .partition_point(|chunk| chunk.start <= within.get())
        .checked_sub(1)?;
    let bit = within.get().checked_sub(chunks.get(at)?.start)?;
    (bit < 64).then_some((index(group.get()), at, bit))
}

/// Inodes in use that may not have shared blocks, a bit for each. They are known before names are
/// counted, so that both can be done at once.
pub(crate) struct Unshared<'a> {
    geometry: &'a Geometry,
    groups: &'a [Group],
    masks: Vec<Vec<u64>>,
}

impl Unshared<'_> {
    pub(crate) fn has(&self, ino: Ino) -> bool {
        place(self.geometry, self.groups, ino).is_some_and(|(group, chunk, bit)| {
            let mask = self.masks.get(group).and_then(|masks| masks.get(chunk));
            mask.is_some_and(|mask| mask.checked_shr(bit).unwrap_or_default() & 1 != 0)
        })
    }
}

impl<'a> Table<'a> {
    fn place(&self, ino: Ino) -> Option<(usize, usize)> {
        let (group, chunk, bit) = place(self.geometry, self.groups, ino)?;
        Some((group, chunk.checked_mul(64)?.checked_add(index(bit))?))
    }

    pub(crate) fn unshared(&self) -> Unshared<'a> {
        let mask = |infos: &[Info]| {
            let bits = (0_u32..).zip(infos);
            bits.filter(|(_, info)| info.file_type.is_some() && !info.has_reflink)
                .fold(0_u64, |mask, (bit, _)| {
                    mask | 1_u64.checked_shl(bit).unwrap_or_default()
                })
        };
        Unshared {
            geometry: self.geometry,
            groups: self.groups,
            masks: self
                .infos
                .iter()
                .map(|infos| infos.chunks(64).map(mask).collect())
                .collect(),
        }
    }
    /// An inode in use that was read.
    pub(crate) fn get(&self, ino: Ino) -> Option<&Info> {
        let (group, slot) = self.place(ino)?;
        self.infos.get(group)?.get(slot).filter(|info| info.file_type.is_some())
    }
    pub(crate) fn get_mut(&mut self, ino: Ino) -> Option<&mut Info> {
        let (group, slot) = self.place(ino)?;
        let info = self.infos.get_mut(group)?.get_mut(slot);
        info.filter(|info| info.file_type.is_some())
    }
    /// True where the chunk says that the inode is in use.
    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        let place = self.geometry.split_ino(ino);
        place.is_some_and(|(group, within)| {
            self.groups
                .get(index(group.get()))
                .is_some_and(|group| group.is_used(within))
        })
    }
    /// All inodes in use.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = (Ino, &Info)> {
        let groups = self.groups.iter().zip(&self.infos);
        groups.flat_map(move |(group, infos)| {
            let chunks = group.chunks.iter().zip(infos.chunks(64));
            chunks.flat_map(move |(chunk, infos)| {
                let numbers = (0..64_u32).map(|bit| chunk.start.saturating_add(bit));
                let found = numbers.zip(infos).filter(|(_, info)| info.file_type.is_some());
                found.map(|(ino, info)| (self.join(group.number, ino), info))
            })
        })
    }
    fn join(&self, group: AgNumber, ino: u32) -> Ino {
        self.geometry.join_ino(group, AgIno(ino))
    }
}
