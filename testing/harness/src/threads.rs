//! Threads beside a test, which end with it: a panic on one side must not leave the other one at
//! work for ever.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};

/// Sets a flag when it goes, with a panic, too: threads that run until then come to their end, and
/// the test to its own.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does `other` again and again, in a thread of its own, until `work` is done, has failed or has
/// panicked. Errors: the one of `work`, else the one of `other`, which ends with it.
pub fn beside<T, E>(mut other: impl FnMut() -> Result<(), E> + Send, work: impl FnOnce() -> Result<T>) -> Result<T>
where
    E: Into<anyhow::Error> + Send,
{
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let other = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                other()?;
            }
            Ok::<_, E>(())
        });
        let worked = work();
        drop(over);
        let ended = other.join().map_err(|_| anyhow!("the thread beside it panicked"));
        let value = worked?;
        ended?.map_err(Into::into)?;
        Ok(value)
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Does something in a thread that is left alone where it hangs.
    #[track_caller]
    fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || done.send(work()));
        wait.recv_timeout(SOON).expect("it comes to an end")
    }

    fn pause() -> Result<()> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }

    #[test]
    fn both_work_until_the_work_is_done() {
        let count = AtomicU64::new(0);
        let other = || {
            count.fetch_add(1, Ordering::Relaxed);
            pause()
        };
        let work = || {
            while count.load(Ordering::Relaxed) < 3 {
                pause()?;
            }
            Ok(7)
        };
        assert_eq!(beside(other, work).unwrap(), 7);
    }

    #[test]
    fn a_panic_of_the_work_ends_both() {
        let panicked = ends(|| {
            catch_unwind(AssertUnwindSafe(|| {
                beside(pause, || -> Result<()> { panic!("as planned") })
            }))
        });
        assert!(panicked.is_err());
    }

    #[test]
    fn an_error_of_either_is_told() {
        let error = ends(|| beside(pause, || -> Result<()> { Err(anyhow!("of the work")) })).unwrap_err();
        assert_eq!(error.to_string(), "of the work");
        // The work is not done before the other has begun.
        let with_other = |other: fn() -> Result<()>| {
            let begun = AtomicBool::new(false);
            let other = || {
                begun.store(true, Ordering::Release);
                other()
            };
            let work = || {
                while !begun.load(Ordering::Acquire) {
                    pause()?;
                }
                Ok(())
            };
            beside(other, work)
        };
        let error = ends(move || with_other(|| Err(anyhow!("of the other")))).unwrap_err();
        assert_eq!(error.to_string(), "of the other");
        let error = ends(move || with_other(|| panic!("as planned"))).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
