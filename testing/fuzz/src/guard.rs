//! What holds a case to its limits: panics are caught in all threads, a watchdog ends a hang, an
//! allocator that counts ends a case that takes too much memory. The last two end the process, with
//! the case's number printed first.
#![allow(
    unsafe_code,
    reason = "a global allocator is an unsafe trait; ours counts and hands on to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A case may take this much memory beside what was in use before it.
pub const MEMORY_BYTES_MAX: i64 = 384 << 20;
/// A case may take so long; sound ones take milliseconds.
pub const CASE_SECONDS_MAX: u64 = 30;

/// Counts what is in use.
pub struct Counting;

static USED_BYTES: AtomicI64 = AtomicI64::new(0);
static LIMIT_BYTES: AtomicI64 = AtomicI64::new(i64::MAX);
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);
static CASE: AtomicU64 = AtomicU64::new(0);
static RUNNING: Mutex<Option<Instant>> = Mutex::new(None);
static QUIET: AtomicBool = AtomicBool::new(false);
static PANICS: Mutex<Vec<Panics>> = Mutex::new(Vec::new());

/// What panicked.
#[derive(Clone, Debug)]
pub struct Panics {
    pub place: String,
    pub what: String,
}

fn count(change: i64) {
    let used = USED_BYTES.fetch_add(change, Ordering::Relaxed) + change;
    PEAK_BYTES.fetch_max(used, Ordering::Relaxed);
    if used > LIMIT_BYTES.load(Ordering::Relaxed) {
        // What is printed needs memory too.
        LIMIT_BYTES.store(i64::MAX, Ordering::Relaxed);
        tell(&Backtrace::force_capture().to_string());
        give_up(&format!("more than {} MiB of memory", MEMORY_BYTES_MAX >> 20));
    }
}

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

fn give_up(why: &str) -> ! {
    let case = CASE.load(Ordering::Relaxed);
    tell(&format!(
        "FAILED: {why}\ncase {case:#x}; replay: cowshed-fuzz image|xfs --replay {case:#x}"
    ));
    std::process::abort();
}

/// Not by a macro: what a test prints with one is kept until the test has ended.
fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Starts the watchdog and listens for panics; to be called once before the first case.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.load(Ordering::Relaxed) {
                return before(info);
            }
            let place = info.location().map_or_else(String::new, ToString::to_string);
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("unnamed");
            let what = format!("{info}\nin thread {thread}\n{}", Backtrace::force_capture());
            PANICS.lock().push(Panics { place, what });
        }));
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_millis(500));
                let since = *RUNNING.lock();
                if since.is_some_and(|since| since.elapsed() > Duration::from_secs(CASE_SECONDS_MAX)) {
                    give_up(&format!("longer than {CASE_SECONDS_MAX} s"));
                }
            }
        });
    });
}

/// A case begins.
pub fn begin(case: u64) {
    CASE.store(case, Ordering::Relaxed);
    let used = USED_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(used, Ordering::Relaxed);
    LIMIT_BYTES.store(used + MEMORY_BYTES_MAX, Ordering::Relaxed);
    *RUNNING.lock() = Some(Instant::now());
    QUIET.store(true, Ordering::Relaxed);
}

/// A case is over.
pub fn end() {
    QUIET.store(false, Ordering::Relaxed);
    *RUNNING.lock() = None;
    LIMIT_BYTES.store(i64::MAX, Ordering::Relaxed);
}

/// The most memory that was ever in use during the last case.
pub fn peak_bytes() -> i64 {
    PEAK_BYTES.load(Ordering::Relaxed)
}

/// Runs `f`; a panic in any thread is the error.
pub fn catching<T>(f: impl FnOnce() -> T) -> Result<T, Panics> {
    PANICS.lock().clear();
    let result = catch_unwind(AssertUnwindSafe(f));
    let first = PANICS.lock().first().cloned();
    match (result, first) {
        (_, Some(panics)) => Err(panics),
        (Ok(value), None) => Ok(value),
        (Err(_), None) => Err(Panics {
            place: "unknown".into(),
            what: "a panic that nobody saw".into(),
        }),
    }
}
