//! Compression by the engine's codecs, for the builder.

use std::sync::{Mutex, PoisonError};

use btrfs_image::build::Packer;
use cowshed_btrfs::compression::compress::{Encoder, feature, on_disk};
use cowshed_btrfs::compression::entropy::looks_compressible;
use cowshed_vfs::Compression;

/// Compresses with one algorithm and level. What a sample does not promise to shrink is not tried,
/// as with the mount option `compress`.
pub(super) struct EnginePacker {
    how: Compression,
    /// Those that no thread uses now: their memory is large.
    encoders: Mutex<Vec<Encoder>>,
}

impl EnginePacker {
    pub(super) fn new(how: Compression) -> Self {
        Self {
            how,
            encoders: Mutex::default(),
        }
    }

    fn encoders(&self) -> std::sync::MutexGuard<'_, Vec<Encoder>> {
        self.encoders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Packer for EnginePacker {
    fn pack(&self, data: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        if !looks_compressible(data) {
            return None;
        }
        let spare = self.encoders().pop();
        let mut encoder = spare.unwrap_or_default();
        let packed = encoder.compress(self.how, data, limit_bytes);
        self.encoders().push(encoder);
        packed
    }

    fn algorithm(&self) -> u8 {
        on_disk(self.how.algorithm())
    }

    fn incompat_bits(&self) -> u64 {
        feature(self.how.algorithm())
    }
}
