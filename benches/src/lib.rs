//! In-process benchmarks.
