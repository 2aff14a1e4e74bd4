//! What a ring carries.

/// A command to `/dev/fuse`. Nothing reads it where there is no ring.
#[allow(dead_code)]
#[derive(Debug)]
pub struct Command {
    pub device: i32,
    pub code: u32,
    pub bytes: [u8; 80],
    /// Address and number of the `iovec`s that it is about.
    pub parts: u64,
    pub parts_len: u32,
}
