//! Threads that repeat one call and time each of them.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};

use super::stats::{self, Sample};

/// What all callers did together.
pub struct Timed {
    pub calls: usize,
    /// From the start of the first caller to the end of the last one.
    pub seconds: f64,
    /// Duration of each call, in no order.
    nanos: Vec<u32>,
}

impl Timed {
    pub fn per_second(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    pub fn sample(mut self) -> Sample {
        Sample {
            value: self.per_second(),
            latency_us: stats::latency_us(&mut self.nanos),
            last_over_best: None,
        }
    }
}

/// Runs `call(caller, n)` for each n below `count` on each of `callers` threads, which start
/// together. The first error of a thread ends it, and is returned.
pub fn run(callers: usize, count: usize, call: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<Timed> {
    let barrier = Barrier::new(callers);
    let one = |caller: usize| -> Result<(Instant, Instant, Vec<u32>)> {
        // Written once, so that no page of it is touched for the first time while calls are timed.
        let mut nanos = vec![u32::MAX; count];
        barrier.wait();
        let started = Instant::now();
        let mut before = started;
        for (n, nanos) in nanos.iter_mut().enumerate() {
            call(caller, n).with_context(|| format!("call {n} of caller {caller}"))?;
            let after = Instant::now();
            *nanos = u32::try_from((after - before).as_nanos()).unwrap_or(u32::MAX);
            before = after;
        }
        Ok((started, before, nanos))
    };
    let one = &one;
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|caller| scope.spawn(move || one(caller))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut timed = Timed {
        calls: callers * count,
        seconds: 0.0,
        nanos: Vec::with_capacity(callers * count),
    };
    let mut span: Option<(Instant, Instant)> = None;
    for thread in ended {
        let (started, ended, nanos) = thread.map_err(|_| anyhow!("a caller panicked"))??;
        let (first, last) = span.unwrap_or((started, ended));
        span = Some((first.min(started), last.max(ended)));
        timed.nanos.extend(nanos);
    }
    let (first, last) = span.context("no caller")?;
    timed.seconds = (last - first).as_secs_f64();
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::ensure;

    use super::*;

    #[test]
    fn every_call_is_made_and_timed() {
        let sum = AtomicUsize::new(0);
        let timed = run(3, 10, |caller, n| {
            sum.fetch_add(caller * 100 + n, Ordering::Relaxed);
            Ok(())
        });
        let timed = timed.unwrap();
        assert_eq!(sum.into_inner(), (100 + 200) * 10 + 3 * 45);
        assert_eq!((timed.calls, timed.nanos.len()), (30, 30));
        assert!(timed.sample().latency_us.is_some());
    }

    #[test]
    fn error_of_one_caller_is_returned() {
        let error = run(2, 10, |caller, n| {
            ensure!((caller, n) != (1, 5), "broken");
            Ok(())
        });
        assert_eq!(format!("{:#}", error.err().unwrap()), "call 5 of caller 1: broken");
    }
}
