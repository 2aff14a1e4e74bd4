//! Work on parts of a volume by several threads; results in the order of the parts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::options::{CheckOptions, Phase};

/// Does `work` on each item. It calls its second argument for each unit of progress.
pub(crate) fn run<T: Sync, R: Send>(
    options: &CheckOptions<'_>,
    phase: Phase,
    items: &[T],
    total: u64,
    work: &(dyn Fn(&T, &dyn Fn()) -> R + Sync),
) -> Vec<R> {
    let done = AtomicU64::new(0);
    let step = || {
        let now = done.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        // A bar that is drawn for each chunk would cost more than the chunk.
        if let Some(progress) = options.progress.filter(|_| now.is_multiple_of(64) || now == total) {
            progress.update(phase, now, total);
        }
    };
    let threads = options.threads.clamp(1, items.len().max(1));
    if threads == 1 {
        return items.iter().map(|item| work(item, &step)).collect();
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(item, &step);
                    results
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
