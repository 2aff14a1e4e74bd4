//! The FUSE protocol: structures, opcodes, and the parsing of requests. Pure: no I/O, no state.

pub mod flags;
pub mod request;
#[cfg(test)]
mod tests;
pub mod wire;

pub use request::{Body, Dialect, Malformed, Operation, Request};
