//! The log as it is read: the ring of blocks, where its live part begins and ends, the records in
//! it, and the transactions in the records.
//!
//! docs/design/xfs-log.md, L1 to L6. Nothing here writes, and nothing knows what a transaction
//! says.

mod ends;
mod ring;
mod transaction;
mod walk;

pub(crate) use ends::{Ends, find};
pub(crate) use ring::Ring;
pub(crate) use transaction::{Transaction, transactions};
