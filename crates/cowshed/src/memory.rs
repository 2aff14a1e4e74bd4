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
    // SAFETY: it takes two numbers and keeps them; no thread runs yet.
    let is_set = unsafe { libc::mallopt(libc::M_MXFAST, 0) } != 0;
    #[cfg(target_env = "gnu")]
    assert!(is_set, "zero is a size that the allocator takes");
}
