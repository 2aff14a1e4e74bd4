//! A background thread that sleeps until it is given work, until a deadline, or until it shall end.
//!
//! ```text
//!   others:  change(state) --wakes--+            stop() --wakes--+--> joins the thread
//!   thread:  wait ------------------+--> Ready --> wait ---------+--> Stop, the body returns
//!               +-- deadline of the Env's clock --> Due
//! ```
//!
//! A state of type `S` says what there is to do. Other threads change it; the body takes from it.
//!
//! The last owner of a service may be its own thread, where the body had the last reference to an
//! object that owns the service. A thread cannot join itself: [`Service::stop`] does not wait then.
//!
//! Locks: the state's, held while the closures of callers run; the event's count within. The
//! thread's handle, no lock within.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::env::Env;
use crate::event::Event;
use crate::system::Thread;

/// A background thread and the state that tells it what to do.
pub struct Service<S> {
    name: &'static str,
    inbox: Arc<Inbox<S>>,
    thread: Mutex<Option<Thread>>,
}

/// The thread's side of a [`Service`].
pub struct Inbox<S> {
    env: Arc<dyn Env>,
    state: Mutex<State<S>>,
    changed: Arc<Event>,
}

struct State<S> {
    value: S,
    stop: bool,
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake<R> {
    /// The state had what was waited for.
    Ready(R),
    /// The deadline is reached.
    Due,
    /// The body shall return.
    Stop,
}

impl<S: Send + 'static> Service<S> {
    /// A service whose thread will have this name. [`Service::start`] starts it.
    pub fn new(name: &'static str, env: Arc<dyn Env>, value: S) -> Self {
        let inbox = Inbox {
            env,
            state: Mutex::new(State { value, stop: false }),
            changed: Arc::default(),
        };
        Self {
            name,
            inbox: Arc::new(inbox),
            thread: Mutex::default(),
        }
    }

    /// Starts the thread. To be called at most once.
    ///
    /// # Errors
    /// When the machine has no thread to give.
    pub fn start(&self, body: impl FnOnce(&Inbox<S>) + Send + 'static) -> io::Result<()> {
        let inbox = self.inbox.clone();
        let thread = self.inbox.env.spawn(self.name, Box::new(move || body(&inbox)))?;
        let before = self.thread.lock().replace(thread);
        assert!(before.is_none(), "a service is started once");
        Ok(())
    }
}

impl<S> Service<S> {
    /// Whether the thread was started, and not stopped since.
    pub fn is_running(&self) -> bool {
        self.thread.lock().is_some()
    }

    /// The clock and the threads that the service uses.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.inbox.env
    }

    /// Changes the state, and wakes the thread.
    pub fn change<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let result = change(&mut self.inbox.state.lock().value);
        self.inbox.changed.signal();
        result
    }

    /// Changes the state, and wakes the thread only where `change` returns true: for callers that
    /// come often with what the thread knows already.
    pub fn change_if(&self, change: impl FnOnce(&mut S) -> bool) {
        if change(&mut self.inbox.state.lock().value) {
            self.inbox.changed.signal();
        }
    }

    /// Ends the thread, and waits for it unless the caller is this thread.
    pub fn stop(&self) {
        self.inbox.state.lock().stop = true;
        self.inbox.changed.signal();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && !thread.is_current()
            && thread.join().is_err()
        {
            tracing::error!(thread = self.name, "a background thread panicked");
        }
    }
}

impl<S> Drop for Service<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<S> std::fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.name)
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}

impl<S> Inbox<S> {
    /// The time that deadlines are in terms of.
    pub fn monotonic(&self) -> Duration {
        self.env.monotonic()
    }

    /// Reads or changes the state without waking the thread: for the body itself.
    pub fn with<R>(&self, look: impl FnOnce(&mut S) -> R) -> R {
        look(&mut self.state.lock().value)
    }

    /// Waits until `take` finds something in the state, until the clock reaches `until`, or until
    /// the service is stopped.
    ///
    /// A stop comes before all else, and what is ready before a deadline.
    pub fn wait<R>(&self, until: Option<Duration>, mut take: impl FnMut(&mut S) -> Option<R>) -> Wake<R> {
        loop {
            let seen = {
                let mut state = self.state.lock();
                if state.stop {
                    return Wake::Stop;
                }
                if let Some(taken) = take(&mut state.value) {
                    return Wake::Ready(taken);
                }
                self.changed.seen()
            };
            match until {
                None => self.changed.wait(seen),
                Some(until) if self.env.monotonic() >= until => return Wake::Due,
                Some(until) => self.env.wait(&self.changed, seen, until),
            }
        }
    }

    /// Waits for the deadline, whatever changes meanwhile. False where the body shall return.
    pub fn sleep_until(&self, until: Duration) -> bool {
        match self.wait(Some(until), |_| None::<()>) {
            Wake::Due | Wake::Ready(()) => true,
            Wake::Stop => false,
        }
    }
}

impl<S> std::fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::manual::ManualEnv;

    const PERIOD: Duration = Duration::from_secs(30);

    /// The next report, which comes soon or not at all.
    fn next<T>(reports: &mpsc::Receiver<T>) -> T {
        reports.recv_timeout(PERIOD).unwrap()
    }

    /// A service that reports why it woke, with what it took and the time. A deadline starts anew
    /// only when it was reached.
    fn reporting(env: &Arc<ManualEnv>) -> (Service<u32>, mpsc::Receiver<(Wake<u32>, Duration)>) {
        let (report, reports) = mpsc::channel();
        let service = Service::new("test", env.clone(), 0);
        let body = move |inbox: &Inbox<u32>| {
            let mut due = inbox.monotonic() + PERIOD;
            loop {
                let take = |value: &mut u32| (*value > 0).then(|| std::mem::take(value));
                let wake = inbox.wait(Some(due), take);
                // The receiver is gone where the test is over.
                let _ = report.send((wake, inbox.monotonic()));
                match wake {
                    Wake::Stop => return,
                    Wake::Due => due = inbox.monotonic() + PERIOD,
                    Wake::Ready(_) => {}
                }
            }
        };
        service.start(body).unwrap();
        (service, reports)
    }

    #[test]
    fn timer_ends_the_wait_once_per_period_of_the_manual_clock() {
        let env = Arc::new(ManualEnv::new(1));
        let (service, reports) = reporting(&env);
        for round in 1..4 {
            env.until_sleepers(1);
            env.advance(PERIOD - Duration::from_nanos(1));
            assert!(reports.try_recv().is_err(), "one nanosecond is missing");
            env.advance(Duration::from_nanos(1));
            assert_eq!(next(&reports), (Wake::Due, PERIOD * round));
        }
        service.stop();
        assert_eq!(next(&reports), (Wake::Stop, PERIOD * 3));
    }

    #[test]
    fn change_wakes_the_thread_and_leaves_its_deadline() {
        let env = Arc::new(ManualEnv::new(1));
        let (service, reports) = reporting(&env);
        env.until_sleepers(1);
        env.advance(PERIOD / 2);
        service.change(|value| *value = 7);
        assert_eq!(next(&reports), (Wake::Ready(7), PERIOD / 2));
        env.until_sleepers(1);
        assert_eq!(env.deadlines(), [PERIOD]);
    }

    #[test]
    fn change_without_effect_does_not_wake_the_thread() {
        let env = Arc::new(ManualEnv::new(1));
        let (service, _reports) = reporting(&env);
        env.until_sleepers(1);
        let seen = service.inbox.changed.seen();
        service.change_if(|_| false);
        assert_eq!(service.inbox.changed.seen(), seen);
        service.change_if(|_| true);
        assert_ne!(service.inbox.changed.seen(), seen);
    }

    #[test]
    fn drop_stops_and_joins_the_thread() {
        let env = Arc::new(ManualEnv::new(1));
        let (service, reports) = reporting(&env);
        assert!(service.is_running());
        drop(service);
        assert_eq!(reports.try_recv().unwrap().0, Wake::Stop);
        assert!(reports.recv().is_err(), "the body has returned");
    }

    #[test]
    fn stop_before_the_first_wait_is_not_lost() {
        let env = Arc::new(ManualEnv::new(1));
        let service = Service::new("test", env, 1);
        service.stop();
        let (report, reports) = mpsc::channel();
        let body = move |inbox: &Inbox<u32>| {
            report.send(inbox.wait(None, |value| Some(*value))).unwrap();
        };
        service.start(body).unwrap();
        assert_eq!(next(&reports), Wake::Stop);
    }

    #[test]
    fn stop_from_the_own_thread_does_not_join() {
        let service = Arc::new(Service::new("test", Arc::new(ManualEnv::new(1)), ()));
        let (report, reports) = mpsc::channel();
        let own = service.clone();
        let body = move |inbox: &Inbox<()>| {
            own.stop();
            report.send(inbox.wait(None, |()| None::<()>)).unwrap();
            drop(own);
        };
        service.start(body).unwrap();
        assert_eq!(next(&reports), Wake::Stop);
    }

    #[test]
    fn stop_after_a_panic_of_the_body_returns() {
        let service = Service::new("test", Arc::new(ManualEnv::new(1)), ());
        service.start(|_| panic!("on purpose")).unwrap();
        service.stop();
        assert!(!service.is_running());
    }

    #[test]
    fn sleep_goes_on_through_changes_until_its_deadline() {
        let env = Arc::new(ManualEnv::new(1));
        let service = Service::new("test", env.clone(), 0);
        let (report, reports) = mpsc::channel();
        let body = move |inbox: &Inbox<u32>| {
            report.send(inbox.sleep_until(PERIOD)).unwrap();
            report.send(inbox.sleep_until(PERIOD * 2)).unwrap();
        };
        service.start(body).unwrap();
        env.until_sleepers(1);
        service.change(|value| *value += 1);
        env.until_sleepers(1);
        env.advance(PERIOD);
        assert!(next(&reports));
        service.stop();
        assert!(!next(&reports));
    }
}
