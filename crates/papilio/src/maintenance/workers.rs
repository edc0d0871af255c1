//! Parts of a job that several threads do at once.
//!
//! Owns [`each_at_once`]. The threads live for one call: a part is a MiB or so, and may take locks
//! of rows, so that it must not run inside the wait of another part, as in a pool.
//!
//! **Locks**: none, except those of the parts.

use papilio_locks::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads for devices that take their time: so many requests of a MiB keep one busy.
const WAITING: usize = 8;

/// Calls `run` for each of `parts`, and returns the results in their order. Where devices take
/// their time (`waits`), several threads call it. All parts are done also if one fails.
pub(crate) fn each_at_once<P: Sync, R: Send>(
    parts: &[P],
    waits: bool,
    run: impl Fn(&P) -> R + Sync,
) -> Vec<R> {
    if !waits || parts.len() < 2 {
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
        for number in 1..WAITING.min(parts.len()) {
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
        let results = each_at_once(&parts, true, |part| {
            barrier.wait();
            part * 10
        });
        assert_eq!(results, parts.iter().map(|part| part * 10).collect::<Vec<_>>());
        let many: Vec<usize> = (0..1000).collect();
        assert_eq!(each_at_once(&many, true, |part| part + 1), (1..=1000).collect::<Vec<_>>());
        assert_eq!(each_at_once(&many, false, |part| part + 1), (1..=1000).collect::<Vec<_>>());
        assert!(each_at_once(&[0; 0], true, |part: &u8| *part).is_empty());
    }
}
