//! The ioctls of loop devices, and other calls that have no safe form here. The only unsafe code of
//! this crate: each passes a structure of the kernel's layout that is borrowed for the whole call,
//! or a number.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

// linux/loop.h
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `loop_info64`
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<LoopInfo>() == 232);

/// `loop_config`
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Waits until a descriptor can be read, at most so long, or somewhat less: the caller looks.
pub(crate) fn wait_readable(file: &impl AsRawFd, limit: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // Rounded up: with less than a millisecond left, the caller does not look again and again.
    let millis = limit.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    // SAFETY: one structure, borrowed for the call.
    let ready = unsafe { libc::poll(&mut poll, 1, millis) };
    match io::Error::last_os_error() {
        error if ready < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// The number of a loop device that was free a moment ago.
pub(crate) fn loop_get_free(control: &File) -> io::Result<u32> {
    // SAFETY: no memory is passed.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Binds the file to the loop device until the last of the device's users has gone. EBUSY if
/// another process was faster.
pub(crate) fn loop_configure(device: &File, backing: &File, read_only: bool, sector_bytes: u32) -> io::Result<()> {
    let flags = LO_FLAGS_AUTOCLEAR | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let config = LoopConfig {
        fd: backing.as_raw_fd() as u32,
        block_size: sector_bytes,
        info: LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            sizelimit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads a `loop_config`.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

// linux/fs.h
const FIDEDUPERANGE: libc::Ioctl = 0xC018_9436_u32 as libc::Ioctl;

/// `file_dedupe_range` with one `file_dedupe_range_info`.
#[repr(C)]
struct DedupeRange {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved: [u16; 3],
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    dest_reserved: u32,
}
const _: () = assert!(size_of::<DedupeRange>() == 56);

/// FIDEDUPERANGE: how many bytes of the two ranges are the same and shared now. Both files are open
/// for writing.
pub fn dedupe_range(from: &File, from_offset: u64, to: &File, to_offset: u64, len_bytes: u64) -> io::Result<u64> {
    let mut range = DedupeRange {
        src_offset: from_offset,
        src_length: len_bytes,
        dest_count: 1,
        reserved: [0; 3],
        dest_fd: to.as_raw_fd().into(),
        dest_offset: to_offset,
        bytes_deduped: 0,
        status: 0,
        dest_reserved: 0,
    };
    // SAFETY: FIDEDUPERANGE reads and writes a `file_dedupe_range` with as many entries as its
    // count says: one.
    let result = unsafe { libc::ioctl(from.as_raw_fd(), FIDEDUPERANGE, &raw mut range) };
    match (result, range.status) {
        (-1, _) => Err(io::Error::last_os_error()),
        (_, status) if status < 0 => Err(io::Error::from_raw_os_error(-status)),
        // 1: they differ.
        (_, 0) => Ok(range.bytes_deduped),
        _ => Ok(0),
    }
}

// linux/fs.h
const FICLONERANGE: libc::Ioctl = 0x4020_940D;

/// `file_clone_range`
#[repr(C)]
struct CloneRange {
    src_fd: i64,
    src_offset: u64,
    src_length: u64,
    dest_offset: u64,
}
const _: () = assert!(size_of::<CloneRange>() == 32);

/// FICLONERANGE: shares a range of a file with another, which is open for writing. A length of 0 is
/// all to the end.
pub fn clone_range(from: &File, from_offset: u64, to: &File, to_offset: u64, len_bytes: u64) -> io::Result<()> {
    let range = CloneRange {
        src_fd: from.as_raw_fd().into(),
        src_offset: from_offset,
        src_length: len_bytes,
        dest_offset: to_offset,
    };
    // SAFETY: FICLONERANGE reads a `file_clone_range`.
    match unsafe { libc::ioctl(to.as_raw_fd(), FICLONERANGE, &raw const range) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

// linux/btrfs.h
const BTRFS_IOC_SUBVOL_CREATE: libc::Ioctl = 0x5000_940E;
const BTRFS_IOC_SNAP_DESTROY: libc::Ioctl = 0x5000_940F;
const BTRFS_IOC_SNAP_CREATE_V2: libc::Ioctl = 0x5000_9417;
const BTRFS_IOC_SUBVOL_SETFLAGS: libc::Ioctl = 0x4008_941a;

/// `btrfs_ioctl_vol_args`
#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; 4088],
}
const _: () = assert!(size_of::<VolArgs>() == 4096);

/// `btrfs_ioctl_vol_args_v2`
#[repr(C)]
struct VolArgs2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}
const _: () = assert!(size_of::<VolArgs2>() == 4096);

fn field<const N: usize>(name: &str) -> io::Result<[u8; N]> {
    let mut field = [0; N];
    // The zero at the end stays.
    match name.len() < N {
        true => field[..name.len()].copy_from_slice(name.as_bytes()),
        false => return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)),
    }
    Ok(field)
}

fn subvolume_call<T>(dir: &File, number: libc::Ioctl, args: &T) -> io::Result<()> {
    const { assert!(size_of::<T>() == 4096) };
    // SAFETY: the callers pass the structure of their ioctl, which reads it.
    match unsafe { libc::ioctl(dir.as_raw_fd(), number, &raw const *args) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// BTRFS_IOC_SUBVOL_CREATE: makes a subvolume in a directory.
pub fn create_subvolume(dir: &File, name: &str) -> io::Result<()> {
    let name = field(name)?;
    subvolume_call(dir, BTRFS_IOC_SUBVOL_CREATE, &VolArgs { fd: 0, name })
}

/// BTRFS_IOC_SNAP_DESTROY: deletes the subvolume of a name in a directory. Its contents go later.
pub fn delete_subvolume(dir: &File, name: &str) -> io::Result<()> {
    let name = field(name)?;
    subvolume_call(dir, BTRFS_IOC_SNAP_DESTROY, &VolArgs { fd: 0, name })
}

/// BTRFS_IOC_SNAP_CREATE_V2: makes a snapshot of an open subvolume in a directory.
pub fn snapshot(source: &File, dir: &File, name: &str, is_read_only: bool) -> io::Result<()> {
    const RDONLY: u64 = 1 << 1;
    let args = VolArgs2 {
        fd: source.as_raw_fd().into(),
        transid: 0,
        flags: if is_read_only { RDONLY } else { 0 },
        unused: [0; 4],
        name: field(name)?,
    };
    subvolume_call(dir, BTRFS_IOC_SNAP_CREATE_V2, &args)
}

/// BTRFS_IOC_SUBVOL_SETFLAGS without a flag: files of the subvolume can be changed. It stays what
/// was received, which `btrfs property` would take back.
pub fn make_subvolume_writable(subvolume: &File) -> io::Result<()> {
    let flags = 0_u64;
    // SAFETY: the ioctl reads eight bytes.
    match unsafe { libc::ioctl(subvolume.as_raw_fd(), BTRFS_IOC_SUBVOL_SETFLAGS, &raw const flags) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

// linux/f2fs.h
const F2FS_IOC_START_ATOMIC_WRITE: libc::Ioctl = 0xf501;
const F2FS_IOC_COMMIT_ATOMIC_WRITE: libc::Ioctl = 0xf502;
const F2FS_IOC_ABORT_ATOMIC_WRITE: libc::Ioctl = 0xf505;
const F2FS_IOC_GET_FEATURES: libc::Ioctl = 0x8004_f50c_u32 as libc::Ioctl;

fn atomic_write(file: &File, number: libc::Ioctl) -> io::Result<()> {
    // SAFETY: these ioctls have no argument.
    match unsafe { libc::ioctl(file.as_raw_fd(), number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The features that f2fs's ioctl names for this descriptor; 4: atomic groups.
pub fn atomic_write_features(file: &File) -> io::Result<u32> {
    let mut bits = 0_u32;
    // SAFETY: the number encodes that four bytes are written.
    match unsafe { libc::ioctl(file.as_raw_fd(), F2FS_IOC_GET_FEATURES, &raw mut bits) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(bits),
    }
}

/// Begins an atomic group: what is written through this descriptor from now on is staged. The file
/// is open for writing.
pub fn start_atomic_write(file: &File) -> io::Result<()> {
    atomic_write(file, F2FS_IOC_START_ATOMIC_WRITE)
}

/// What was staged happens, all of it, and is durable.
pub fn commit_atomic_write(file: &File) -> io::Result<()> {
    atomic_write(file, F2FS_IOC_COMMIT_ATOMIC_WRITE)
}

/// What was staged is dropped.
pub fn abort_atomic_write(file: &File) -> io::Result<()> {
    atomic_write(file, F2FS_IOC_ABORT_ATOMIC_WRITE)
}

/// Writes through a shared mapping of the file, which must be long enough.
pub fn write_through_map(file: &File, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
    const PAGE_BYTES: u64 = 4096;
    let start = offset_bytes - offset_bytes % PAGE_BYTES;
    let lead = (offset_bytes - start) as usize;
    let len = lead + data.len();
    if file.metadata()?.len() < offset_bytes + data.len() as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let offset = libc::off_t::try_from(start).map_err(io::Error::other)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is of `lead + data.len()` bytes, within the file, and no other code has
    // its address.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), map.cast::<u8>().add(lead), data.len());
        libc::munmap(map, len);
    }
    Ok(())
}

/// What a handle may take of bytes: MAX_HANDLE_SZ of linux/fcntl.h.
const HANDLE_BYTES_MAX: usize = 128;

/// `file_handle` with room behind it.
#[repr(C)]
struct RawHandle {
    head: libc::file_handle,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// A file's handle: its type and bytes, and nothing else, as NFS clients keep it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle {
    pub kind: i32,
    pub bytes: Vec<u8>,
}

impl FileHandle {
    /// name_to_handle_at(2), without following a symbolic link.
    pub fn of(path: &Path) -> io::Result<FileHandle> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        Self::at(libc::AT_FDCWD, &path, 0)
    }

    /// The handle of what is open.
    pub fn of_open(file: &impl AsRawFd) -> io::Result<FileHandle> {
        Self::at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
    }

    fn at(dir: libc::c_int, path: &CStr, flags: libc::c_int) -> io::Result<FileHandle> {
        let mut raw = RawHandle {
            head: libc::file_handle {
                handle_bytes: HANDLE_BYTES_MAX as u32,
                handle_type: 0,
                f_handle: [],
            },
            bytes: [0; HANDLE_BYTES_MAX],
        };
        let mut mount_id = 0;
        // SAFETY: a valid string, and a structure with as much room behind it as it says.
        let done =
            unsafe { libc::name_to_handle_at(dir, path.as_ptr(), (&raw mut raw).cast(), &raw mut mount_id, flags) };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(FileHandle {
            kind: raw.head.handle_type,
            bytes: raw.bytes[..raw.head.handle_bytes as usize].to_vec(),
        })
    }

    /// open_by_handle_at(2). `mount` is any open file of the mount.
    pub fn open(&self, mount: &File, flags: i32) -> io::Result<File> {
        let mut raw = RawHandle {
            head: libc::file_handle {
                handle_bytes: self.bytes.len() as u32,
                handle_type: self.kind,
                f_handle: [],
            },
            bytes: [0; HANDLE_BYTES_MAX],
        };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: a structure with as many bytes behind it as it says.
        let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut raw).cast(), flags | libc::O_CLOEXEC) };
        match fd {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: a fresh descriptor of ours.
            fd => Ok(unsafe { File::from_raw_fd(fd) }),
        }
    }
}
