//! Data that was sent in the form in which the other side stores it.

use anyhow::{Context, Result, bail};
use btrfs_format::items::compression as stored;
use btrfs_stream::compression as sent;
use cowshed_btrfs::compression::decompress::{COMPRESSED_EXTENT_BYTES_MAX, Decoder};

/// What an `encoded_write` says of its data.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    /// Bytes that come into the file.
    pub file_len: u64,
    /// Bytes of the whole extent, decoded.
    pub len: u64,
    /// Where in it the file's bytes begin.
    pub offset: u64,
    pub compression: u32,
    pub encryption: u32,
}

/// Decodes extents, one at a time.
#[derive(Default)]
pub struct Extents {
    /// For one size of sectors at a time, which LZO depends on.
    decoder: Decoder,
    decoded: Vec<u8>,
}

impl Extents {
    /// The bytes that belong into the file.
    pub fn decode<'s>(&'s mut self, how: &Encoding, data: &'s [u8]) -> Result<&'s [u8]> {
        if how.encryption != 0 {
            bail!("encryption {} is unknown", how.encryption);
        }
        let algorithm = match how.compression {
            sent::NONE => return part(data, how),
            sent::ZLIB => stored::ZLIB,
            sent::ZSTD => stored::ZSTD,
            other => match sent::lzo_sector_bytes(other) {
                Some(sector_bytes) => {
                    self.decoder.set_sector_bytes(sector_bytes);
                    stored::LZO
                }
                None => bail!("compression {other} is unknown"),
            },
        };
        let len = usize::try_from(how.len)
            .ok()
            .filter(|len| *len <= COMPRESSED_EXTENT_BYTES_MAX);
        let Some(len) = len else {
            bail!("an extent of {} bytes, limit {COMPRESSED_EXTENT_BYTES_MAX}", how.len);
        };
        self.decoded.resize(len, 0);
        self.decoder
            .decompress(algorithm, data, &mut self.decoded)
            .context("the data does not decompress")?;
        part(&self.decoded, how)
    }
}

fn part<'d>(decoded: &'d [u8], how: &Encoding) -> Result<&'d [u8]> {
    let end = how.offset.checked_add(how.file_len);
    let range = usize::try_from(how.offset)
        .ok()
        .zip(end.and_then(|end| usize::try_from(end).ok()));
    match range.and_then(|(from, to)| decoded.get(from..to)) {
        Some(part) => Ok(part),
        None => bail!(
            "{} bytes at byte {} of an extent of {} bytes",
            how.file_len,
            how.offset,
            decoded.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(compression: u32) -> Encoding {
        Encoding {
            file_len: 3,
            len: 10,
            offset: 2,
            compression,
            encryption: 0,
        }
    }

    #[track_caller]
    fn refused(how: &Encoding, words: &str) {
        let error = Extents::default().decode(how, b"0123456789").unwrap_err();
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }

    #[test]
    fn numbers_of_lzo_say_their_sectors() {
        for sector_bytes in [0x1000, 0x2000, 0x4000, 0x8000, 0x1_0000] {
            assert_eq!(
                sent::lzo_sector_bytes(sent::lzo(sector_bytes.into())),
                Some(sector_bytes)
            );
        }
        let others = [sent::NONE, sent::ZLIB, sent::ZSTD, sent::LZO_64K + 1];
        assert!(others.iter().all(|other| sent::lzo_sector_bytes(*other).is_none()));
    }

    #[test]
    fn the_files_part_of_an_extent_is_cut_out() {
        let mut extents = Extents::default();
        assert_eq!(extents.decode(&how(sent::NONE), b"0123456789").unwrap(), b"234");
    }

    #[test]
    fn what_cannot_be_decoded_is_named() {
        refused(
            &Encoding {
                encryption: 4,
                ..how(0)
            },
            "encryption 4 is unknown",
        );
        refused(&how(5), "does not decompress");
        refused(&how(8), "compression 8 is unknown");
        refused(&how(sent::ZLIB), "does not decompress");
        refused(&Encoding { len: 1 << 20, ..how(1) }, "an extent of 1048576 bytes");
        refused(
            &Encoding { file_len: 9, ..how(0) },
            "9 bytes at byte 2 of an extent of 10 bytes",
        );
        refused(
            &Encoding {
                offset: u64::MAX,
                ..how(0)
            },
            "of an extent of 10 bytes",
        );
    }
}
