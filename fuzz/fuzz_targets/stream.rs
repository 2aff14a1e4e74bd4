//! A send stream is read to its end or its first error; what was read is written and reads the
//! same.
#![no_main]

#[path = "../../crates/btrfs-stream/tests/common/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::exercise(bytes);
    exercise::exercise(&exercise::sealed(bytes));
});
