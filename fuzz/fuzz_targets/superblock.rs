//! A superblock is verified or refused, and rendered either way.
#![no_main]

#[allow(dead_code, reason = "shared with the mutation test")]
#[path = "../../crates/btrfs-format/tests/common/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::superblock(bytes);
});
