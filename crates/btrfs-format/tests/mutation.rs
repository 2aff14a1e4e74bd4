//! Blocks that Linux wrote are accepted, and mutations of them never make a reader panic.
//!
//! The corpus holds 4 KiB blocks of volumes that mkfs.btrfs made and the kernel filled, a few for
//! every type of item; `kernel_volumes` writes it. `MUTATION_SEED` and `MUTATION_ROUNDS` choose
//! another run.

#[path = "common/exercise.rs"]
mod exercise;

use std::collections::BTreeSet;

use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use btrfs_format::{KeyType, Superblock, TreeBlock};

const CORPUS: &[u8] = include_bytes!("corpus/blocks.bin");
const SUPERBLOCK: &[u8] = include_bytes!("corpus/superblock.bin");

fn blocks() -> impl Iterator<Item = &'static [u8]> {
    CORPUS.chunks(4096)
}

#[test]
fn blocks_of_linux_are_accepted() {
    let mut types = BTreeSet::new();
    for bytes in blocks() {
        let expect = exercise::expect_itself(bytes).unwrap();
        let block = TreeBlock::verify(bytes, &expect).unwrap();
        types.extend(block.item_headers().iter().map(|head| head.key.ty));
        assert!(exercise::block(bytes));
    }
    for ty in [
        KeyType::INODE_ITEM,
        KeyType::INODE_EXTREF,
        KeyType::XATTR_ITEM,
        KeyType::ORPHAN_ITEM,
        KeyType::DIR_LOG_INDEX,
        KeyType::EXTENT_DATA,
        KeyType::EXTENT_CSUM,
        KeyType::ROOT_BACKREF,
        KeyType::EXTENT_ITEM,
        KeyType::METADATA_ITEM,
        KeyType::EXTENT_DATA_REF,
        KeyType::SHARED_DATA_REF,
        KeyType::FREE_SPACE_BITMAP,
        KeyType::CHUNK_ITEM,
        KeyType::UUID_SUBVOL,
    ] {
        assert!(types.contains(&ty), "the corpus lacks {ty}");
    }
    assert!(Superblock::verify(SUPERBLOCK, Some(SUPERBLOCK_OFFSETS[0])).is_ok());
    assert!(exercise::superblock(SUPERBLOCK));
}

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }
    /// Numbers at which bounds break.
    fn number(&mut self) -> u64 {
        let near = [0, 1 << 7, 1 << 8, 1 << 12, 1 << 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
        match self.below(3) {
            0 => self.roll(),
            1 => self.roll() % 256,
            _ => near[self.below(near.len())]
                .wrapping_add(self.roll() % 3)
                .wrapping_sub(1),
        }
    }
}

fn mutate(bytes: &mut [u8], dice: &mut Dice) {
    // Most of the meaning is at the head and at the end of what is used.
    let len = bytes.len();
    for _ in 0..=dice.below(4) {
        let at = match dice.below(3) {
            0 => dice.below(len.min(400)),
            1 => len - 1 - dice.below(len.min(600)),
            _ => dice.below(len),
        };
        let number = dice.number().to_le_bytes();
        let width = [1, 2, 4, 8][dice.below(4)].min(len - at);
        match dice.below(3) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at..at + width].copy_from_slice(&number[..width]),
            _ => {
                let from = dice.below(len - width + 1);
                bytes.copy_within(from..from + width, at);
            }
        }
    }
}

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn mutated_blocks_neither_panic_nor_hang() {
    let seed = number_from_env("MUTATION_SEED", 0x00c0_ffee);
    println!("MUTATION_SEED={seed}");
    let rounds = number_from_env("MUTATION_ROUNDS", 150);
    let mut dice = Dice(seed | 1);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..rounds {
        for block in blocks() {
            let mut bytes = block.to_vec();
            mutate(&mut bytes, &mut dice);
            if exercise::block(&bytes) {
                accepted += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(
        accepted > 0 && refused > accepted / 10,
        "{accepted} accepted, {refused} refused: the mutations miss the point"
    );
}

#[test]
fn mutated_superblocks_neither_panic_nor_hang() {
    let seed = number_from_env("MUTATION_SEED", 0x00c0_ffee);
    println!("MUTATION_SEED={seed}");
    let mut dice = Dice(seed | 1);
    let mut refused = 0;
    for _ in 0..number_from_env("MUTATION_ROUNDS", 150) * 20 {
        let mut bytes = SUPERBLOCK.to_vec();
        mutate(&mut bytes, &mut dice);
        refused += u32::from(!exercise::superblock(&bytes));
    }
    assert!(refused > 0);
}
