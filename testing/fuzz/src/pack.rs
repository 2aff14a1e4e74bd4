//! Volumes as small files: what is not zero of each device, compressed.

use anyhow::{Context, Result, ensure};
use cowshed_device::{BlockDevice, MemDevice};

const MAGIC: &[u8; 8] = b"cowfuzz1";
const PIECE_BYTES: usize = 4096;

/// Packs devices.
pub fn pack(devices: &[MemDevice]) -> Result<Vec<u8>> {
    let mut out = MAGIC.to_vec();
    out.extend((devices.len() as u32).to_le_bytes());
    for device in devices {
        out.extend(device.size_bytes().to_le_bytes());
        let mut piece = [0; PIECE_BYTES];
        for offset in (0..device.size_bytes()).step_by(PIECE_BYTES) {
            device.read_at(offset, &mut piece)?;
            if piece.iter().any(|b| *b != 0) {
                out.extend(offset.to_le_bytes());
                out.extend(piece);
            }
        }
        out.extend(u64::MAX.to_le_bytes());
    }
    Ok(zstd::encode_all(&out[..], 19)?)
}

/// The devices of a packed volume.
pub fn unpack(packed: &[u8]) -> Result<Vec<MemDevice>> {
    let bytes = zstd::decode_all(packed)?;
    let mut rest = &bytes[..];
    ensure!(take(&mut rest, 8)? == MAGIC, "not a packed volume");
    let count = u32::from_le_bytes(take(&mut rest, 4)?.try_into()?);
    let mut devices = Vec::new();
    for index in 0..count {
        let device = MemDevice::new(format!("device{index}"), number(&mut rest)?);
        loop {
            let offset = number(&mut rest)?;
            if offset == u64::MAX {
                break;
            }
            device.write_at(offset, take(&mut rest, PIECE_BYTES)?)?;
        }
        devices.push(device);
    }
    Ok(devices)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (now, later) = rest.split_at_checked(len).context("a packed volume ends early")?;
    *rest = later;
    Ok(now)
}

fn number(rest: &mut &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(take(rest, 8)?.try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let device = MemDevice::new("d", 1 << 20);
        device.write_at(70_000, b"here").unwrap();
        let back = unpack(&pack(&[device]).unwrap()).unwrap();
        let mut found = [0; 6];
        back[0].read_at(69_999, &mut found).unwrap();
        assert_eq!((back.len(), back[0].size_bytes(), &found), (1, 1 << 20, b"\0here\0"));
    }
}
