//! Ioctls of `<linux/btrfs.h>` that have a fixed size, which Linux passes on, with their arguments.
//! Fields are named as there.

use std::mem::size_of;

use cowshed_vfs::Timestamp;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `BTRFS_IOC_SNAP_CREATE`: [`VolArgs`].
pub const SNAP_CREATE: u32 = 0x5000_9401;
/// `BTRFS_IOC_SCAN_DEV`, of `/dev/btrfs-control`: [`VolArgs`] with the path of a device.
pub const SCAN_DEV: u32 = 0x5000_9404;
/// `BTRFS_IOC_FORGET_DEV`, of `/dev/btrfs-control`: [`VolArgs`]; an empty path means all.
pub const FORGET_DEV: u32 = 0x5000_9405;
/// `BTRFS_IOC_DEVICES_READY`, of `/dev/btrfs-control`: [`VolArgs`]; the result is 0 or 1.
pub const DEVICES_READY: u32 = 0x9000_9427;
/// `BTRFS_IOC_SUBVOL_CREATE`: [`VolArgs`].
pub const SUBVOL_CREATE: u32 = 0x5000_940e;
/// `BTRFS_IOC_SNAP_DESTROY`: [`VolArgs`].
pub const SNAP_DESTROY: u32 = 0x5000_940f;
/// `BTRFS_IOC_TREE_SEARCH`: [`SearchArgs`].
pub const TREE_SEARCH: u32 = 0xd000_9411;
/// `BTRFS_IOC_INO_LOOKUP`: [`InoLookup`].
pub const INO_LOOKUP: u32 = 0xd000_9412;
/// `BTRFS_IOC_DEFAULT_SUBVOL`: a number.
pub const DEFAULT_SUBVOL: u32 = 0x4008_9413;
/// `BTRFS_IOC_WAIT_SYNC`: a transaction; 0 for the running one.
pub const WAIT_SYNC: u32 = 0x4008_9416;
/// `BTRFS_IOC_SNAP_CREATE_V2`: [`VolArgs2`].
pub const SNAP_CREATE_V2: u32 = 0x5000_9417;
/// `BTRFS_IOC_SUBVOL_CREATE_V2`: [`VolArgs2`].
pub const SUBVOL_CREATE_V2: u32 = 0x5000_9418;
/// `BTRFS_IOC_START_SYNC`: gives a transaction.
pub const START_SYNC: u32 = 0x8008_9418;
/// `BTRFS_IOC_SUBVOL_GETFLAGS`: gives [`RDONLY`] or nothing.
pub const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
/// `BTRFS_IOC_SUBVOL_SETFLAGS`: [`RDONLY`] or nothing.
pub const SUBVOL_SETFLAGS: u32 = 0x4008_941a;
/// `BTRFS_IOC_DEV_INFO`: [`DevInfo`].
pub const DEV_INFO: u32 = 0xd000_941e;
/// `BTRFS_IOC_FS_INFO`: [`FsInfo`].
pub const FS_INFO: u32 = 0x8400_941f;
/// `BTRFS_IOC_SET_RECEIVED_SUBVOL`: [`ReceivedSubvol`].
pub const SET_RECEIVED_SUBVOL: u32 = 0xc0c8_9425;
/// `BTRFS_IOC_GET_FSLABEL`: gives [`LABEL_BYTES`].
pub const GET_FSLABEL: u32 = 0x8100_9431;
/// `BTRFS_IOC_SET_FSLABEL`: [`LABEL_BYTES`].
pub const SET_FSLABEL: u32 = 0x4100_9432;
/// `BTRFS_IOC_GET_DEV_STATS`: [`DevStats`].
pub const GET_DEV_STATS: u32 = 0xc408_9434;
/// `BTRFS_IOC_GET_FEATURES`: gives [`FeatureFlags`].
pub const GET_FEATURES: u32 = 0x8018_9439;
/// `BTRFS_IOC_GET_SUPPORTED_FEATURES`: gives three [`FeatureFlags`]: what is known, what can be
/// set, what can be cleared.
pub const GET_SUPPORTED_FEATURES: u32 = 0x8048_9439;
/// `BTRFS_IOC_GET_SUBVOL_INFO`: gives [`SubvolInfo`].
pub const GET_SUBVOL_INFO: u32 = 0x81f8_943c;
/// `BTRFS_IOC_GET_SUBVOL_ROOTREF`: [`RootRefs`].
pub const GET_SUBVOL_ROOTREF: u32 = 0xd000_943d;
/// `BTRFS_IOC_INO_LOOKUP_USER`: [`InoLookupUser`].
pub const INO_LOOKUP_USER: u32 = 0xd000_943e;
/// `BTRFS_IOC_SNAP_DESTROY_V2`: [`VolArgs2`].
pub const SNAP_DESTROY_V2: u32 = 0x5000_943f;

/// `BTRFS_IOC_SUBVOL_SYNC_WAIT`: [`SubvolWait`].
pub const SUBVOL_SYNC_WAIT: u32 = 0x4010_9441;

/// [`SubvolWait::mode`]: until one is gone.
pub const WAIT_FOR_ONE: u32 = 0;
/// Until all are gone that were deleted before.
pub const WAIT_FOR_QUEUED: u32 = 1;
/// So many modes there are. The others give something back, which the command's number does not say.
pub const WAIT_MODES: u32 = 5;

/// The root directory of each subvolume.
pub const ROOT_INO: u64 = 256;
/// `BTRFS_SUBVOL_RDONLY`: nothing in it can be changed.
pub const RDONLY: u64 = 1 << 1;
/// `BTRFS_SUBVOL_SPEC_BY_ID`: [`VolArgs2::name`] begins with a number.
pub const SPEC_BY_ID: u64 = 1 << 4;
/// Room for a label.
pub const LABEL_BYTES: usize = 256;

macro_rules! arguments {
    ($($(#[$meta:meta])* $name:ident($bytes:literal) { $($(#[$doc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the header names and describes the fields")]
            pub struct $name { $($(#[$doc])* pub $field: $ty,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

arguments! {
    /// `struct btrfs_ioctl_vol_args`.
    VolArgs(4096) { fd: I64, name: [u8; 4088], }
    /// `struct btrfs_ioctl_vol_args_v2`.
    VolArgs2(4096) {
        fd: I64,
        transid: U64,
        flags: U64,
        unused: [U64; 4],
        name: [u8; 4040],
    }
    /// `struct btrfs_ioctl_ino_lookup_args`.
    InoLookup(4096) { treeid: U64, objectid: U64, name: [u8; 4080], }
    /// `struct btrfs_ioctl_ino_lookup_user_args`.
    InoLookupUser(4096) { dirid: U64, treeid: U64, name: [u8; 256], path: [u8; 3824], }
    /// `struct btrfs_ioctl_search_key`.
    SearchKey(104) {
        tree_id: U64,
        min_objectid: U64,
        max_objectid: U64,
        min_offset: U64,
        max_offset: U64,
        min_transid: U64,
        max_transid: U64,
        min_type: U32,
        max_type: U32,
        nr_items: U32,
        unused: [U32; 9],
    }
    /// `struct btrfs_ioctl_search_args`.
    SearchArgs(4096) { key: SearchKey, buf: [u8; 3992], }
    /// `struct btrfs_ioctl_search_header`; the item follows.
    SearchHeader(32) { transid: U64, objectid: U64, offset: U64, ty: U32, len: U32, }
    /// `struct btrfs_ioctl_timespec`.
    Time(16) { sec: U64, nsec: U32, pad: U32, }
    /// `struct btrfs_ioctl_received_subvol_args`.
    ReceivedSubvol(200) {
        uuid: [u8; 16],
        stransid: U64,
        rtransid: U64,
        stime: Time,
        rtime: Time,
        flags: U64,
        reserved: [U64; 16],
    }
    /// `struct btrfs_ioctl_subvol_wait`.
    SubvolWait(16) {
        subvolid: U64,
        mode: U32,
        count: U32,
    }
    /// `struct btrfs_ioctl_get_subvol_info_args`.
    SubvolInfo(504) {
        treeid: U64,
        name: [u8; 256],
        parent_id: U64,
        dirid: U64,
        generation: U64,
        flags: U64,
        uuid: [u8; 16],
        parent_uuid: [u8; 16],
        received_uuid: [u8; 16],
        ctransid: U64,
        otransid: U64,
        stransid: U64,
        rtransid: U64,
        ctime: Time,
        otime: Time,
        stime: Time,
        rtime: Time,
        reserved: [U64; 8],
    }
    /// An entry of [`RootRefs`].
    RootRef(16) { treeid: U64, dirid: U64, }
    /// `struct btrfs_ioctl_get_subvol_rootref_args`.
    RootRefs(4096) { min_treeid: U64, rootref: [RootRef; 255], num_items: u8, align: [u8; 7], }
    /// `struct btrfs_ioctl_dev_info_args`.
    DevInfo(4096) {
        devid: U64,
        uuid: [u8; 16],
        bytes_used: U64,
        total_bytes: U64,
        fsid: [u8; 16],
        unused: [U64; 377],
        path: [u8; 1024],
    }
    /// `struct btrfs_ioctl_fs_info_args`.
    FsInfo(1024) {
        max_id: U64,
        num_devices: U64,
        fsid: [u8; 16],
        nodesize: U32,
        sectorsize: U32,
        clone_alignment: U32,
        csum_type: U16,
        csum_size: U16,
        flags: U64,
        generation: U64,
        metadata_uuid: [u8; 16],
        reserved: [u8; 944],
    }
    /// `struct btrfs_ioctl_feature_flags`.
    FeatureFlags(24) { compat_flags: U64, compat_ro_flags: U64, incompat_flags: U64, }
    /// `struct btrfs_ioctl_get_dev_stats`.
    DevStats(1032) { devid: U64, nr_items: U64, flags: U64, values: [U64; 5], unused: [U64; 121], }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            sec: time.secs.cast_unsigned().into(),
            nsec: time.nanos.into(),
            pad: U32::ZERO,
        }
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Timestamp::new(time.sec.get().cast_signed(), time.nsec.get())
    }
}

/// The bytes of a field up to the first zero; `None` where there is none.
pub fn text(field: &[u8]) -> Option<&[u8]> {
    field.iter().position(|&b| b == 0).map(|end| &field[..end])
}

/// Fills a field with bytes and zeros behind them. False where there is no room for one zero.
pub fn put_text(field: &mut [u8], text: &[u8]) -> bool {
    if text.len() >= field.len() {
        return false;
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text);
    true
}
