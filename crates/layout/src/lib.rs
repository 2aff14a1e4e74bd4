//! What the crates of all disk formats share: the declaration of on-disk structures, rules for
//! fields, and numbers as text. Knows no format.
//!
//! Pure: no I/O, no threads, no unsafe, no panic on any input.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

mod disk;
mod rule;
mod text;

pub use disk::{FieldLayout, Layout};
pub use rule::{Rule, len_u64};
pub use text::{flag_names, hex, utc_text, uuid_text};
