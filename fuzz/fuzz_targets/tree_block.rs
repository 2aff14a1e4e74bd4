//! A tree block is verified or refused; what was accepted can be read and rendered in full.
#![no_main]

#[allow(dead_code, reason = "shared with the mutation test")]
#[path = "../../crates/btrfs-format/tests/common/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::block(bytes);
});
