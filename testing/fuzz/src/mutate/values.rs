//! Numbers that hurt.

use cowshed_device_sim::Rng;

use crate::layout::Layout;

/// Changes the number of at most `width` bytes at `at`.
pub fn change(bytes: &mut [u8], at: usize, width: usize, layout: &Layout, rng: &mut Rng) {
    let end = (at + width.clamp(1, 8)).min(bytes.len());
    let Some(part) = bytes.get_mut(at..end) else { return };
    let mut old = [0; 8];
    old[..part.len()].copy_from_slice(part);
    let new = other(u64::from_le_bytes(old), layout, rng);
    part.copy_from_slice(&new.to_le_bytes()[..part.len()]);
}

/// Another number than this one, most often.
pub fn other(old: u64, layout: &Layout, rng: &mut Rng) -> u64 {
    const EDGES: [u64; 22] = [
        0,
        1,
        2,
        5,
        255,
        256,
        257,
        4095,
        4096,
        65535,
        65536,
        1 << 20,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        1 << 40,
        1 << 62,
        (1 << 63) - 1,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX - 8,
        u64::MAX,
    ];
    let block = &layout.blocks[rng.index(layout.blocks.len())];
    match rng.below(16) {
        0..4 => EDGES[rng.index(EDGES.len())],
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old.wrapping_add(4096),
        7 => old.wrapping_sub(4096),
        8 => old ^ (1 << rng.below(64)),
        9 => old ^ (1 << rng.below(8)),
        10 => old.wrapping_mul(2),
        11 => block.addr,
        12 => block.generation + rng.below(2),
        13 => 256 + rng.below(40),
        14 => old.wrapping_add(rng.below(1 << 20)) & !4095,
        _ => rng.next_u64() >> rng.below(64),
    }
}
