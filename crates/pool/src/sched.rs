//! The scheduling policy of helpers.
#![allow(unsafe_code)]

use std::io;

/// Has the calling thread wait for a free processor when it wakes, instead of preempting a thread
/// that runs (`SCHED_BATCH`).
///
/// The thread that a helper would preempt is often the one that needs its result: a program that
/// reads data read ahead for it. Callers are not delayed by this, since a caller does itself what
/// no helper has begun.
#[cfg(target_os = "linux")]
pub(crate) fn do_not_preempt() -> io::Result<()> {
    // Linux' own structure is this number alone. The C library's is larger in musl, whose function
    // does nothing but fail.
    let priority: libc::c_int = 0;
    // SAFETY: the call reads the number it is given; 0 is this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Linux alone has such a policy.
#[cfg(not(target_os = "linux"))]
pub(crate) fn do_not_preempt() -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) fn may_preempt() -> bool {
    // SAFETY: no memory is touched.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    policy != libc::c_long::from(libc::SCHED_BATCH)
}
