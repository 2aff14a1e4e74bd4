//! Named cases of what a crash after fsync must leave.
//!
//! A case ([`table`]) is a short script: a setup that a `sync` ends, operations with their fsyncs,
//! and then the crash; and what must be there afterwards ([`expect`]). It is run on four roads
//! ([`roads`]): the kernel writes or we do, the kernel replays or we do. The crash image is a copy
//! of the device right after the last operation returned. Whichever side replays, both checkers
//! must find nothing afterwards; and of one image kernel and Cowshed must make the same tree.
//!
//! In [`reverse`] the kernel runs at random, and its crash images, cut at many moments, are
//! replayed by both. In [`cuts`] it does so on a recorded device ([`recorder`]): the power fails at
//! each of its barriers, and what was not yet durable is lost, reordered or torn.
//!
//! In [`items`] the results of both replays of the kernel's logs are compared item by item.
//!
//! In [`random`] both write the same random scripts, and what their crashes leave is compared.
//!
//! The table stands in `docs/design/log-cases.md`, printed by [`doc`].

pub mod cuts;
pub mod doc;
pub mod expect;
pub mod items;
pub mod random;
pub mod recorder;
pub mod reverse;
pub mod roads;
pub mod table;

pub use table::{Answer, Case};
