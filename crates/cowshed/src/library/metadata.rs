//! What is known of a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cowshed_vfs::{Attr, FileKind, Timestamp};

/// What is known of a file, directory or anything else with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(super) Attr);

impl Metadata {
    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }
    /// A directory, subvolumes included.
    pub fn is_dir(&self) -> bool {
        self.0.is_dir()
    }
    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::Regular
    }
    /// A symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }
    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "as std::fs::Metadata has it")]
    pub fn len(&self) -> u64 {
        self.0.size_bytes
    }
    /// Space it takes, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks_512
    }
    /// Kind and permission bits, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode()
    }
    /// Inode number, as a mount shows it.
    pub fn ino(&self) -> u64 {
        self.0.ino
    }
    /// How many names it has.
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }
    /// Owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }
    /// Group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }
    /// Major and minor number of a device node.
    pub fn device(&self) -> (u32, u32) {
        let raw = self.0.rdev;
        ((raw >> 8) & 0xfff, (raw & 0xff) | ((raw >> 12) & 0xfff00))
    }
    /// When it was last read; how exactly depends on the options.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }
    /// When its content last changed.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }
    /// When anything about it last changed.
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }
    /// When it was made.
    pub fn created(&self) -> SystemTime {
        system_time(self.0.btime)
    }
    /// Last reading, change of content, change of anything, and birth, as they are stored.
    pub fn timestamps(&self) -> [Timestamp; 4] {
        [self.0.atime, self.0.mtime, self.0.ctime, self.0.btime]
    }
    /// Preferred size of reads and writes, in bytes.
    pub fn blksize(&self) -> u32 {
        self.0.blksize
    }
}

/// Times beyond what the system can hold (seconds are 64 bits of anything on disk) become its
/// epoch.
fn system_time(t: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(t.secs.unsigned_abs());
    let base = if t.secs < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(t.nanos.into())))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_system_times_and_impossible_ones_do_not_panic() {
        let before = system_time(Timestamp::new(-2, 750_000_000));
        assert_eq!(
            UNIX_EPOCH.duration_since(before).unwrap(),
            Duration::new(1, 250_000_000)
        );
        assert_eq!(system_time(Timestamp::new(i64::MAX, u32::MAX)), UNIX_EPOCH);
        assert_eq!(system_time(Timestamp::new(5, 6)), UNIX_EPOCH + Duration::new(5, 6));
    }
}
