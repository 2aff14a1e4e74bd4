//! How the C library's allocator is set up and told to return memory. Unsafe, because these are
//! calls of the C library.
#![allow(unsafe_code)]

/// Gives free memory back to the system, also from the middle of the heap: by itself, the C library
/// does so at the end of the heap alone, where something is always in use.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Freed memory is joined with its neighbours at once.
///
/// glibc's default is to keep small freed pieces apart, and to join all of them when a large block
/// is wanted the next time. After a commit, which drops all that was pending, that costs 0.1 s for
/// each million of names made: an fsync waited for it, or whatever else came next. Without the
/// default it is a part of the commit.
pub fn join_freed_memory_at_once() {
    #[cfg(target_env = "gnu")]
    set(libc::M_MXFAST, 0);
}

/// One heap for all threads, where processors are few.
///
/// glibc gives each thread a heap of its own, which grows by 4 KiB at a time, with a system call:
/// one for each five or six new files, and other threads wait for it where they touch new memory.
/// What a thread frees of another one's heap is of no use to itself: with `max_memory=64m`, 300,000
/// files needed 250 to 320 MiB, and need 140.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // The threads of more might wait for each other. Measured with two.
        const PROCESSORS_MAX: usize = 4;
        const STEP_BYTES: libc::c_int = 1 << 20;
        if std::thread::available_parallelism().is_ok_and(|processors| processors.get() <= PROCESSORS_MAX) {
            set(libc::M_ARENA_MAX, 1);
            set(libc::M_TOP_PAD, STEP_BYTES);
        }
    }
}

#[cfg(target_env = "gnu")]
fn set(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: it takes two numbers and keeps them, under a lock.
    let is_set = unsafe { libc::mallopt(parameter, value) } != 0;
    assert!(is_set, "the allocator takes this value");
}
