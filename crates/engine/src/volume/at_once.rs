//! Work on several devices at once.
//!
//! Owns [`at_once`]. Locks: none.
//!
//! Kernel counterpart: `barrier_all_devices` (`fs/btrfs/disk-io.c`), which starts the flushes of
//! all devices before it waits for the first.

use rayon::{ThreadPool, ThreadPoolBuilder};
use smallvec::SmallVec;
use std::sync::OnceLock;

/// Results that need no allocation.
const USUAL: usize = 4;
/// Threads that wait for devices. They are kept: a new thread for each part would take longer than
/// a fast device, and make a ring of its own.
const THREADS: usize = 16;

/// Returns the threads; `None` where none can be started.
fn threads() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let name = |number| format!("papilio-dev-{number}");
    POOL.get_or_init(|| ThreadPoolBuilder::new().num_threads(THREADS).thread_name(name).build().ok()).as_ref()
}

/// Calls `run` for each of `parts`, and returns the results in their order. With `waits`, all run
/// at once, all but the first in threads of their own: for parts that wait for different devices.
pub(super) fn at_once<P: Send, R: Send>(
    parts: impl IntoIterator<Item = P>,
    waits: bool,
    run: impl Fn(P) -> R + Sync,
) -> SmallVec<[R; USUAL]> {
    let mut parts: SmallVec<[P; USUAL]> = parts.into_iter().collect();
    let pool = if waits && parts.len() > 1 { threads() } else { None };
    let Some(pool) = pool else { return parts.into_iter().map(run).collect() };
    let first = parts.remove(0);
    let mut results: SmallVec<[Option<R>; USUAL]> = parts.iter().map(|_| None).collect();
    let first = pool.in_place_scope(|scope| {
        let run = &run;
        for (part, result) in parts.into_iter().zip(&mut results) {
            scope.spawn(move |_| *result = Some(run(part)));
        }
        run(first)
    });
    let others = results.into_iter().map(|result| result.expect("the scope waits for all parts"));
    std::iter::once(first).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn parts_that_wait_run_at_once_and_keep_their_order() {
        // Each waits for all others.
        let barrier = Barrier::new(5);
        let results = at_once(0..5, true, |part| {
            barrier.wait();
            part * 10
        });
        assert_eq!(results[..], [0, 10, 20, 30, 40]);
        let results = at_once(0..3, false, |part| (part, thread::current().id()));
        assert!(
            results.iter().enumerate().all(|(at, &(part, id))| at == part && id == thread::current().id())
        );
        assert!(at_once(0..0, true, |part: usize| part).is_empty());
        assert_eq!(at_once([7], true, |part| part)[..], [7]);
    }

    #[test]
    #[should_panic(expected = "planted")]
    fn a_panic_reaches_the_caller() {
        at_once(0..3, true, |part| assert!(part != 2, "planted"));
    }
}
