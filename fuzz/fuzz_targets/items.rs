//! Views and renderings of item data that nothing has verified stop where the data does.
#![no_main]

use btrfs_format::DiskKey;
use zerocopy::FromBytes;

#[allow(dead_code, reason = "shared with the mutation test")]
#[path = "../../crates/btrfs-format/tests/common/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok((key, data)) = DiskKey::read_from_prefix(bytes) {
        exercise::views(&key.into(), data);
    }
});
