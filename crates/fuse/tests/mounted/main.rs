//! A file system in memory, mounted for real: what applications see. Needs the superuser and
//! `/dev/fuse`; without them each test says so and passes, except under `CI=true`, where nothing
//! may be skipped.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod asynchronous;
mod basics;
mod caches;
mod ends;
mod failing;
mod handles;
mod names;
mod repeated;
mod support;
mod survival;
mod transport;
