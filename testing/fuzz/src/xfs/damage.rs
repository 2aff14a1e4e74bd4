//! Damage: fields, mostly with checksums set right again, blocks in each other's place, noise.

use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::Rng;
use xfs_format::crc;

use super::Piece;

/// What was done.
#[derive(Debug, Default)]
pub struct Damage {
    /// For people.
    pub done: Vec<String>,
    /// The device shall end here.
    pub cut_at: Option<u64>,
}

impl Damage {
    /// Damages a volume in one to four places.
    pub fn make(device: &MemDevice, kinds: &[Vec<Piece>], rng: &mut Rng) -> Damage {
        let mut damage = Damage::default();
        for _ in 0..1 + rng.below(4) {
            let piece = pick(kinds, rng);
            match rng.below(100) {
                0..3 => damage.cut(device, rng),
                3..12 => damage.copy(device, piece, pick(kinds, rng), rng),
                12..20 => damage.noise(device, piece, rng),
                _ => damage.fields(device, piece, rng),
            }
        }
        damage
    }

    fn fields(&mut self, device: &MemDevice, piece: Piece, rng: &mut Rng) {
        let Some(mut bytes) = read(device, piece) else { return };
        let reseal = rng.below(5) != 0;
        for _ in 0..1 + rng.below(3) {
            let width = 1_usize << rng.below(4);
            // Headers are hit more often than what follows.
            let limit = if rng.one_in(2) { 256.min(piece.len) } else { piece.len };
            let at = rng.below(limit as u64) as usize / width * width;
            let Some(field) = bytes.get_mut(at..at + width) else {
                continue;
            };
            let value = value(field, rng);
            self.done
                .push(format!("{:#x}+{at}, {width} bytes: {value:#x}", piece.at));
            field.copy_from_slice(&value.to_be_bytes()[8 - width..]);
        }
        write(device, piece, &mut bytes, reseal);
    }

    /// A piece in the place of another one.
    fn copy(&mut self, device: &MemDevice, from: Piece, to: Piece, rng: &mut Rng) {
        let Some(mut bytes) = read(device, Piece { len: to.len, ..from }) else {
            return;
        };
        self.done.push(format!("{:#x} copied to {:#x}", from.at, to.at));
        write(device, to, &mut bytes, rng.one_in(2));
    }

    fn noise(&mut self, device: &MemDevice, piece: Piece, rng: &mut Rng) {
        let Some(mut bytes) = read(device, piece) else { return };
        let from = rng.index(piece.len);
        let len = (1 + rng.index(64)).min(piece.len - from);
        bytes[from..from + len].fill_with(|| rng.next_u64() as u8);
        self.done.push(format!("{:#x}+{from}: {len} bytes of noise", piece.at));
        write(device, piece, &mut bytes, rng.one_in(2));
    }

    fn cut(&mut self, device: &MemDevice, rng: &mut Rng) {
        let at = rng.below(device.size_bytes() / 512) * 512;
        self.done.push(format!("cut at {at}"));
        self.cut_at = Some(at);
    }
}

fn pick(kinds: &[Vec<Piece>], rng: &mut Rng) -> Piece {
    let kind = &kinds[rng.index(kinds.len())];
    kind[rng.index(kind.len())]
}

/// A value for a field that matters: near the old one, at an end of the range, or any.
fn value(old: &[u8], rng: &mut Rng) -> u64 {
    let old = old.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    match rng.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << rng.below(64),
        5 => rng.below(1 << 12),
        6 => old.wrapping_mul(2),
        _ => rng.next_u64(),
    }
}

fn read(device: &MemDevice, piece: Piece) -> Option<Vec<u8>> {
    let mut bytes = vec![0; piece.len];
    device.read_at(piece.at, &mut bytes).ok()?;
    Some(bytes)
}

fn write(device: &MemDevice, piece: Piece, bytes: &mut [u8], reseal: bool) {
    if let Some(at) = piece.crc.filter(|_| reseal) {
        crc::store(bytes, at);
    }
    // The last block of the volume may end before the piece does.
    let _ = device.write_at(piece.at, bytes);
}
