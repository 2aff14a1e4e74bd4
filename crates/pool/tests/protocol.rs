//! The protocol between callers and helpers, under all interleavings that loom can tell apart.
//!
//! `src/protocol.rs` is compiled here with loom's locks. The work of a call is a cell that stands
//! for the stack of its caller: helpers read it, and the caller writes it after the close, as the
//! stack is written when its frame is gone. loom reports an access that another one does not happen
//! before, and a thread that waits for ever.

mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

#[allow(dead_code, reason = "what only the pool uses")]
#[path = "../src/protocol.rs"]
mod protocol;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use protocol::Calls;

type Stack = Arc<UnsafeCell<u32>>;

/// Upper bound on preemptions in an interleaving. Planted faults need up to three; with four the
/// largest test takes a minute instead of seconds.
const PREEMPTIONS_MAX: usize = 3;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(test);
}

/// A helper that reads the caller's stack.
fn start_helper(calls: &Arc<Calls<Stack>>) -> thread::JoinHandle<()> {
    let calls = calls.clone();
    thread::spawn(move || {
        calls.help(|stack: Stack| {
            stack.with(|_| {});
            Ok(())
        });
    })
}

/// A call as [`cowshed_pool::Pool::call`] makes it.
fn call(calls: &Calls<Stack>, helpers: usize) {
    let stack = Arc::new(UnsafeCell::new(0));
    let id = calls.open(helpers, stack.clone());
    calls.wake(helpers);
    stack.with(|_| {});
    assert!(calls.close(id).is_none());
    stack.with_mut(|_| {});
}

#[test]
fn close_returns_when_no_helper_uses_the_work_any_more() {
    model(|| {
        let calls = Arc::new(Calls::new());
        let helpers = [start_helper(&calls), start_helper(&calls)];
        call(&calls, 2);
        calls.end();
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    });
}

#[test]
fn calls_after_each_other_reuse_the_helper() {
    model(|| {
        let calls = Arc::new(Calls::new());
        let helper = start_helper(&calls);
        call(&calls, 1);
        call(&calls, 1);
        calls.end();
        helper.join().unwrap();
    });
}

/// Two callers, and so many helpers.
fn calls_at_the_same_time(helpers: usize) {
    let calls = Arc::new(Calls::new());
    let helpers: Vec<_> = (0..helpers).map(|_| start_helper(&calls)).collect();
    let other = {
        let calls = calls.clone();
        thread::spawn(move || call(&calls, 1))
    };
    call(&calls, 1);
    other.join().unwrap();
    calls.end();
    helpers.into_iter().for_each(|helper| helper.join().unwrap());
}

#[test]
fn calls_at_the_same_time_share_a_helper() {
    model(|| calls_at_the_same_time(1));
}

/// A helper that leaves one call wakes the caller of the other, whose helper is still inside.
#[test]
fn close_waits_on_when_the_helper_of_another_call_leaves() {
    model(|| calls_at_the_same_time(2));
}

#[test]
fn panic_of_a_helper_that_entered_reaches_the_caller() {
    model(|| {
        let calls = Arc::new(Calls::new());
        let entered = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let helper = {
            let (calls, entered) = (calls.clone(), entered.clone());
            thread::spawn(move || {
                calls.help(|_: ()| {
                    entered.store(true, loom::sync::atomic::Ordering::SeqCst);
                    Err(Box::new("on purpose"))
                });
            })
        };
        let id = calls.open(1, ());
        calls.wake(1);
        let panic = calls.close(id);
        assert_eq!(panic.is_some(), entered.load(loom::sync::atomic::Ordering::SeqCst));
        calls.end();
        helper.join().unwrap();
    });
}
