//! Everything a developer runs.
fn main() {}
