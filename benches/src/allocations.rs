//! Counts allocations: the C library's allocator, with two counters for each thread. Unsafe,
//! because an allocator is.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Threads beyond these share counters, and lose some counts.
const THREADS_MAX: usize = 64;

/// Written by one thread alone: a plain addition, on a cache line of its own.
#[repr(align(64))]
struct Counts {
    calls: AtomicU64,
    live_bytes: AtomicI64,
}

static COUNTS: [Counts; THREADS_MAX] = [const {
    Counts {
        calls: AtomicU64::new(0),
        live_bytes: AtomicI64::new(0),
    }
}; THREADS_MAX];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn note(calls: u64, bytes: i64) {
    let own = OWN.get();
    let own = if own < THREADS_MAX {
        own
    } else {
        let next = THREADS.fetch_add(1, Ordering::Relaxed) % THREADS_MAX;
        OWN.set(next);
        next
    };
    let counts = &COUNTS[own];
    let calls_now = counts.calls.load(Ordering::Relaxed).wrapping_add(calls);
    counts.calls.store(calls_now, Ordering::Relaxed);
    let live_now = counts.live_bytes.load(Ordering::Relaxed).wrapping_add(bytes);
    counts.live_bytes.store(live_now, Ordering::Relaxed);
}

/// Allocations by all threads so far; 0 where the program does not count them.
pub fn calls() -> u64 {
    COUNTS.iter().map(|counts| counts.calls.load(Ordering::Relaxed)).sum()
}

/// Bytes that are allocated, as callers asked for them.
pub fn live_bytes() -> i64 {
    let live = COUNTS.iter().map(|counts| counts.live_bytes.load(Ordering::Relaxed));
    live.sum()
}

/// For `#[global_allocator]`.
pub struct Counting;

fn bytes(layout_bytes: usize) -> i64 {
    i64::try_from(layout_bytes).unwrap_or(i64::MAX)
}

// SAFETY: all of it is the allocator of the system; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, bytes(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, bytes(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(0, -bytes(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        note(1, bytes(new_bytes) - bytes(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_bytes) }
    }
}

/// One heap for all threads, as in a process that serves a mount on a machine of few processors
/// (`memory.rs` of the command).
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_TOP_PAD, 1 << 20)] {
        // SAFETY: it takes two numbers and keeps them, under a lock.
        let is_set = unsafe { libc::mallopt(parameter, value) } != 0;
        assert!(is_set, "the allocator takes this value");
    }
}
