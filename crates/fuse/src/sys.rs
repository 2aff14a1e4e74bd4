//! The system calls that the standard library does not have. With the entries of io_uring queues,
//! the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A page of this kernel. Not 4 KiB everywhere: 16 on a Raspberry Pi 5, 64 on some servers.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// All other threads come before the calling one.
pub fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!(%error, "a thread has the usual priority");
    }
}

/// Connects a freshly opened `/dev/fuse` to the session of another.
pub fn clone_device(fresh: &File, session: BorrowedFd<'_>) -> Result<()> {
    let source = session.as_raw_fd() as u32;
    // SAFETY: the ioctl reads one u32 through the pointer, which is valid for the call.
    check(unsafe { libc::ioctl(fresh.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &raw const source) }).map(drop)
}

pub fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, data: &str) -> Result<()> {
    let (source, target) = (CString::new(source)?, c_path(target)?);
    let (kind, data) = (CString::new(kind)?, CString::new(data)?);
    // SAFETY: all four pointers are NUL-terminated strings that live until after the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    };
    check(result).map(drop)
}

pub fn umount(target: &Path, lazy: bool) -> Result<()> {
    let target = c_path(target)?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: the pointer is a NUL-terminated string that lives until after the call.
    check(unsafe { libc::umount2(target.as_ptr(), flags) }).map(drop)
}

/// Unmounts, and has all requests fail that are under way.
pub fn abort(target: &Path) -> Result<()> {
    let target = c_path(target)?;
    // SAFETY: the pointer is a NUL-terminated string that lives until after the call.
    let aborted = check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_FORCE) });
    // Busy: aborted all the same, but still mounted.
    // SAFETY: as above.
    let detached = check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) });
    aborted.or(detached).map(drop)
}

/// How many requests in the background the kernel allows a session of this user. The superuser may
/// have any number; a kernel that does not say is left to decide.
pub fn background_max() -> u16 {
    if is_root() {
        return u16::MAX;
    }
    let text = std::fs::read_to_string("/sys/module/fuse/parameters/max_user_bgreq");
    let limit = text.ok().and_then(|text| text.trim().parse::<u32>().ok());
    // 0: a kernel that works it out when it is first asked.
    match limit {
        None | Some(0) => u16::MAX,
        Some(limit) => u16::try_from(limit).unwrap_or(u16::MAX),
    }
}

/// Makes reads of the open file behind `fd` return at once.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: F_GETFL and F_SETFL take and return integers only.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Lets a child process inherit `fd`.
pub fn set_inheritable(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: F_SETFD takes an integer only.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) }).map(drop)
}

/// Receives one file descriptor over a Unix socket; None at its end.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    const FD_BYTES: u32 = size_of::<RawFd>() as u32;
    let mut byte = 0u8;
    // Aligned as cmsghdr wants it, and longer than one descriptor needs.
    let mut control = [0u64; 8];
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: msghdr is plain data for which zeros are valid.
    let mut msg: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    // SAFETY: msg points to one iovec with one byte and to a control buffer of the stated length,
    // all alive.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: msg was filled by recvmsg; the header pointer is null or inside the control buffer.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const msg).as_ref() };
    let Some(header) = header else { return Ok(None) };
    // SAFETY: CMSG_LEN only computes.
    let wanted = unsafe { libc::CMSG_LEN(FD_BYTES) } as usize;
    let is_fd = header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS;
    if !is_fd || header.cmsg_len < wanted as _ {
        return Ok(None);
    }
    // SAFETY: the message has at least the length of one descriptor after its header; it may be
    // unaligned.
    let fd = unsafe { libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned() };
    // SAFETY: the kernel has just installed this descriptor for us, and nothing else refers to it.
    Ok((fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Real user and group of this process.
pub fn user() -> (u32, u32) {
    // SAFETY: these calls cannot fail and touch no memory.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Is the effective user the superuser?
pub fn is_root() -> bool {
    // SAFETY: as above.
    unsafe { libc::geteuid() == 0 }
}

/// The processor that a thread ran on last. `None`: there is no such thread (any more).
pub fn processor_of(thread: u32) -> Option<usize> {
    // Fields of proc_pid_stat(5) count from 1; two come before the closing parenthesis.
    const PROCESSOR: usize = 39 - 3;
    let stat = std::fs::read(format!("/proc/{thread}/task/{thread}/stat")).ok()?;
    let after_name = stat.iter().rposition(|&b| b == b')')? + 2;
    let fields = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    fields.split(' ').nth(PROCESSOR)?.parse().ok()
}

/// The processor that this thread runs on.
pub fn processor() -> Option<usize> {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Moves this thread to a processor, where it may run there. It does not have to stay.
pub fn move_to(processor: usize) -> Result<()> {
    // SAFETY: a set of processors is plain integers; both calls are given its address and size;
    // `CPU_SET` checks the range.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        check(libc::sched_getaffinity(0, size, &mut allowed))?;
        if processor >= libc::CPU_SETSIZE as usize || !libc::CPU_ISSET(processor, &allowed) {
            return Ok(());
        }
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut one);
        check(libc::sched_setaffinity(0, size, &one))?;
        check(libc::sched_setaffinity(0, size, &allowed)).map(drop)
    }
}

/// How long this thread has been on a processor.
pub fn thread_time() -> Duration {
    // SAFETY: the call fills in the structure it is given, for which zeros are valid.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How often this thread has gone to sleep by itself: for a lock, a device, a request.
pub fn thread_sleeps() -> u64 {
    // SAFETY: as above.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}
