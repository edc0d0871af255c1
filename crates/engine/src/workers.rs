//! Parts of a job that several threads do at once.
//!
//! Owns [`each_at_once`] and the number of threads. They live for one call. A part is a MiB or so.
//! It may take locks of rows, so that it must not run inside the wait of another part, as in a
//! pool.
//!
//! **Locks**: none, except those of the parts.

use papilio_locks::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads for devices that take their time: so many requests of a MiB keep one busy.
const WAITING: usize = 8;

/// The most threads elsewhere, where copying and checksums take the time.
const WORKING: usize = 4;

/// Returns the number of threads for a volume: more than processors where devices take their time
/// (`waits`).
pub(crate) fn threads(waits: bool) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    if waits { WAITING } else { processors().min(WORKING) }
}

/// Calls `run` for each of `parts` in so many threads, and returns the results in their order. All
/// parts are done also if one fails.
pub(crate) fn each_at_once<P: Sync, R: Send>(
    parts: &[P],
    threads: usize,
    run: impl Fn(&P) -> R + Sync,
) -> Vec<R> {
    if threads < 2 || parts.len() < 2 {
        return parts.iter().map(run).collect();
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(parts.iter().map(|_| None).collect());
    let work = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(part) = parts.get(number)
        {
            let result = run(part);
            results.lock()[number] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for number in 1..threads.min(parts.len()) {
            let name = format!("papilio-part-{number}");
            // Without a thread, the others do its parts.
            let _started = std::thread::Builder::new().name(name).spawn_scoped(scope, work);
        }
        work();
    });
    let done = |result: Option<R>| result.expect("the scope waits for all parts");
    results.into_inner().into_iter().map(done).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn parts_run_at_once_and_keep_their_order() {
        // Each waits for all others.
        let barrier = Barrier::new(WAITING);
        let parts: Vec<usize> = (0..WAITING).collect();
        let results = each_at_once(&parts, threads(true), |part| {
            barrier.wait();
            part * 10
        });
        assert_eq!(results, parts.iter().map(|part| part * 10).collect::<Vec<_>>());
        let many: Vec<usize> = (0..1000).collect();
        assert_eq!(each_at_once(&many, 3, |part| part + 1), (1..=1000).collect::<Vec<_>>());
        assert_eq!(each_at_once(&many, 1, |part| part + 1), (1..=1000).collect::<Vec<_>>());
        assert!(each_at_once(&[0; 0], 8, |part: &u8| *part).is_empty());
    }
}
