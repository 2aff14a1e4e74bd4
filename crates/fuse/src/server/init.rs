//! INIT: what kernel and server agree on.

use cowshed_vfs::{Capabilities, PermissionChecks};

use crate::proto::flags::InitFlags;
use crate::proto::wire::{InitInShort, InitOut};
use crate::sys::page_bytes;

/// The protocol's major version. There is no other.
pub const MAJOR: u32 = 7;
/// The newest minor version that this server speaks (Linux 6.18).
pub const MINOR: u32 = 45;
/// The oldest: Linux 5.4.
pub const MINOR_MIN: u32 = 31;

/// From here on (Linux 6.18) the kernel passes sync(2) and syncfs(2) on to mounts of block devices.
pub const SYNCFS_MINOR: u32 = 45;

/// Requests that the kernel sends without waiting for their replies (readahead, direct I/O). More
/// than programs usually have under way: replies to direct writes may be withheld until reads,
/// which are among these requests, were served.
pub const BACKGROUND_MAX: u16 = 2048;
/// From here on the kernel reads less ahead.
const CONGESTION_AT: u16 = 96;

/// What the mount wants of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// The side that checks permissions. With [`PermissionChecks::FrontEnd`], the kernel
    /// (`default_permissions`).
    pub checks: PermissionChecks,
    pub read_only: bool,
    /// Largest read and write in bytes, a multiple of the kernel's page.
    pub io_bytes_max: usize,
    /// The kernel keeps written data and sends it later. Off: earlier direct reads may miss data
    /// that was not sent, and times change after the fact.
    pub writeback_cache: bool,
    /// Let the kernel skip OPEN where the file system allows it.
    pub skip_open: bool,
    /// Have the kernel never ask for extended attributes: the mount shows none, and modes alone say
    /// what is permitted where the kernel checks.
    pub skip_xattrs: bool,
    /// Serve over io_uring. An offer that is taken binds: the kernel sends nothing until all queues
    /// are registered.
    pub io_uring: bool,
    /// Requests in the background: [`BACKGROUND_MAX`], or less where the kernel allows this user
    /// less.
    pub background_max: u16,
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub minor: u32,
    pub flags: InitFlags,
    pub capabilities: Capabilities,
    pub checks: PermissionChecks,
    /// See [`Wishes::skip_xattrs`].
    pub skips_xattrs: bool,
}

impl Agreed {
    pub fn skips_open(&self) -> bool {
        self.capabilities.stateless_open && self.flags.contains(InitFlags::NO_OPEN_SUPPORT)
    }

    /// Does sync(2) reach this mount? Never one that is not of a block device.
    pub fn passes_syncfs_on(&self, is_block_device: bool) -> bool {
        is_block_device && self.minor >= SYNCFS_MINOR
    }

    /// Does the server decide which callers keep set-id bits when they change contents? Linux 5.11
    /// and later decides, and marks the requests of callers that may not keep them.
    pub fn judges_set_ids(&self) -> bool {
        self.flags.contains(InitFlags::HANDLE_KILLPRIV)
    }

    /// Does the server decide whether an access list takes set-group-id away? Linux 5.13 and later
    /// decides, and marks the request. A file system that checks permissions decides by itself.
    pub fn judges_access_lists(&self) -> bool {
        self.checks == PermissionChecks::FrontEnd && !self.flags.contains(InitFlags::SETXATTR_EXT)
    }

    pub fn skips_opendir(&self) -> bool {
        self.capabilities.stateless_opendir && self.flags.contains(InitFlags::NO_OPENDIR_SUPPORT)
    }
}

/// Chooses among what the kernel offers.
pub fn agree(kernel: &InitInShort, flags2: u32, wishes: &Wishes, capabilities: Capabilities) -> Agreed {
    let minor = kernel.minor.min(MINOR);
    let mut offered = InitFlags::from_bits_retain(kernel.flags.into());
    if offered.contains(InitFlags::INIT_EXT) {
        offered |= InitFlags::from_bits_retain(u64::from(flags2) << 32);
    }
    let mut wanted = InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::MAX_PAGES
        | InitFlags::ASYNC_DIO
        | InitFlags::DONT_MASK
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::DO_READDIRPLUS
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::EXPLICIT_INVAL_DATA
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::ABORT_ERROR
        | InitFlags::SETXATTR_EXT
        | InitFlags::INIT_EXT
        | InitFlags::CREATE_SUPP_GROUP
        | InitFlags::HAS_EXPIRE_ONLY
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::NO_OPENDIR_SUPPORT;
    // The kernel takes POSIX_ACL as an order to check permissions itself.
    wanted.set(
        InitFlags::POSIX_ACL,
        capabilities.posix_acl && !wishes.skip_xattrs && wishes.checks == PermissionChecks::FrontEnd,
    );
    // Without either, the kernel removes set-id bits by a SETATTR of the mode before the write. It
    // comes with the caller's user, which need not be the owner, and leaves set-group-id where the
    // group may not execute. Not with a cache of written data: the caller of a page is not known.
    wanted.set(
        InitFlags::HANDLE_KILLPRIV,
        !offered.contains(InitFlags::HANDLE_KILLPRIV_V2) && !wishes.writeback_cache,
    );
    wanted.set(InitFlags::EXPORT_SUPPORT, capabilities.file_handles);
    wanted.set(InitFlags::WRITEBACK_CACHE, wishes.writeback_cache);
    wanted.set(InitFlags::OVER_IO_URING, wishes.io_uring);
    let skip_open = wishes.skip_open && capabilities.stateless_open;
    wanted.set(InitFlags::NO_OPEN_SUPPORT, skip_open);
    // Never ATOMIC_O_TRUNC: its OPEN truncates before the kernel has looked whether the file may be
    // written at all, which destroys a running program that is opened with O_RDONLY | O_TRUNC; and
    // without OPEN it would truncate nothing.
    let flags = wanted & offered;
    Agreed {
        minor,
        flags,
        capabilities,
        checks: wishes.checks,
        skips_xattrs: wishes.skip_xattrs,
    }
}

/// The reply to INIT.
pub fn init_out(kernel: &InitInShort, wishes: &Wishes, agreed: &Agreed) -> InitOut {
    let bits = agreed.flags.bits();
    // The kernel counts in its own pages, and reads may be as large as these allow.
    let io_bytes_max = wishes.io_bytes_max.next_multiple_of(page_bytes());
    InitOut {
        major: MAJOR,
        minor: agreed.minor,
        max_readahead: kernel.max_readahead.max(wishes.io_bytes_max as u32),
        flags: bits as u32,
        max_background: wishes.background_max,
        congestion_threshold: CONGESTION_AT.min(wishes.background_max),
        max_write: io_bytes_max as u32,
        time_gran: agreed.capabilities.time_granularity_nanos.max(1),
        max_pages: (io_bytes_max / page_bytes()) as u16,
        flags2: (bits >> 32) as u32,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: Wishes = Wishes {
        checks: PermissionChecks::FrontEnd,
        read_only: false,
        io_bytes_max: 1 << 20,
        writeback_cache: false,
        skip_open: true,
        skip_xattrs: false,
        io_uring: false,
        background_max: BACKGROUND_MAX,
    };

    fn kernel(flags: InitFlags, minor: u32) -> (InitInShort, u32) {
        let bits = flags.bits();
        (
            InitInShort {
                major: 7,
                minor,
                max_readahead: 131072,
                flags: bits as u32,
            },
            (bits >> 32) as u32,
        )
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered() {
        let (init, flags2) = kernel(InitFlags::ASYNC_READ | InitFlags::BIG_WRITES, 31);
        let agreed = agree(&init, flags2, &WISHES, Capabilities::default());
        assert_eq!(agreed.flags, InitFlags::ASYNC_READ | InitFlags::BIG_WRITES);
        assert_eq!(agreed.minor, 31);
    }

    #[test]
    fn the_upper_half_counts_only_with_init_ext() {
        let upper = InitFlags::HAS_EXPIRE_ONLY | InitFlags::DIRECT_IO_ALLOW_MMAP;
        let (init, flags2) = kernel(upper, 36);
        assert_eq!(
            agree(&init, flags2, &WISHES, Capabilities::default()).flags,
            InitFlags::empty()
        );
        let (init, flags2) = kernel(upper | InitFlags::INIT_EXT, 36);
        let agreed = agree(&init, flags2, &WISHES, Capabilities::default());
        assert!(agreed.flags.contains(upper));
        let out = init_out(&init, &WISHES, &agreed);
        assert_eq!((out.flags2, out.max_write), (flags2, 1 << 20));
        assert_eq!(usize::from(out.max_pages) * page_bytes(), 1 << 20);
    }

    #[test]
    fn open_is_skipped_where_the_kernel_offers_it_and_never_truncates() {
        let stateless = Capabilities {
            stateless_open: true,
            ..Default::default()
        };
        let without = InitFlags::all() - InitFlags::NO_OPEN_SUPPORT;
        for (offered, minor, capabilities, skips) in [
            (InitFlags::all(), 99, stateless, true),
            (InitFlags::all(), 99, Capabilities::default(), false),
            (without, 31, stateless, false),
        ] {
            let (init, flags2) = kernel(offered, minor);
            let agreed = agree(&init, flags2, &WISHES, capabilities);
            assert_eq!(agreed.skips_open(), skips);
            assert_eq!(agreed.minor, minor.min(MINOR));
            assert!(!agreed.flags.contains(InitFlags::ATOMIC_O_TRUNC));
        }
    }

    #[test]
    fn handles_are_exported_where_the_file_system_can_find_nodes_again() {
        let (init, flags2) = kernel(InitFlags::all(), 45);
        for file_handles in [true, false] {
            let capabilities = Capabilities {
                file_handles,
                ..Default::default()
            };
            let agreed = agree(&init, flags2, &WISHES, capabilities);
            assert_eq!(agreed.flags.contains(InitFlags::EXPORT_SUPPORT), file_handles);
            assert!(!agreed.flags.contains(InitFlags::NO_EXPORT_SUPPORT));
        }
    }

    #[test]
    fn set_id_bits_are_judged_by_the_server_where_the_kernel_says_nothing() {
        let without = InitFlags::HANDLE_KILLPRIV_V2 | InitFlags::SETXATTR_EXT;
        for (offered, judges) in [(InitFlags::all(), false), (InitFlags::all() - without, true)] {
            let (init, flags2) = kernel(offered, 32);
            let agreed = agree(&init, flags2, &WISHES, Capabilities::default());
            assert_eq!(agreed.judges_set_ids(), judges);
            assert_eq!(agreed.flags.contains(InitFlags::HANDLE_KILLPRIV_V2), !judges);
            assert_eq!(agreed.judges_access_lists(), judges);
            let cached = Wishes {
                writeback_cache: true,
                ..WISHES
            };
            let cached = agree(&init, flags2, &cached, Capabilities::default());
            assert!(!cached.judges_set_ids(), "written pages have no caller");
            let checks = PermissionChecks::FileSystem;
            assert!(!Agreed { checks, ..agreed }.judges_access_lists());
        }
    }

    #[test]
    fn sync_reaches_block_devices_of_new_kernels() {
        for (minor, is_block_device, reaches) in [(45, true, true), (44, true, false), (45, false, false)] {
            let (init, flags2) = kernel(InitFlags::all(), minor);
            let agreed = agree(&init, flags2, &WISHES, Capabilities::default());
            assert_eq!(agreed.passes_syncfs_on(is_block_device), reaches, "{minor}");
        }
    }

    #[test]
    fn lists_are_left_to_the_file_system_when_it_checks() {
        let (init, flags2) = kernel(InitFlags::all(), 45);
        let wishes = Wishes {
            checks: PermissionChecks::FileSystem,
            ..WISHES
        };
        let agreed = agree(&init, flags2, &wishes, Capabilities::default());
        assert!(!agreed.flags.contains(InitFlags::POSIX_ACL));
    }
}
