//! Acquisitions that the checks report, and sound ones that they accept.

use crate::{Class, Condvar, Mutex, RwLock, in_order, might_lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs `acquire`, which must violate the order, and returns the message.
fn violation(acquire: impl FnOnce()) -> String {
    let panicked = catch_unwind(AssertUnwindSafe(acquire)).expect_err("the violation panics");
    panicked.downcast_ref::<String>().expect("the panic has a message").clone()
}

#[test]
fn opposite_orders_are_reported_without_contention() {
    let (first, second) = (Mutex::new(1), Mutex::new(2));
    {
        let _first = first.lock();
        let _second = second.lock();
    }
    let text = violation(|| {
        let _second = second.lock();
        let _first = first.lock();
    });
    assert!(text.contains("opposite order") && text.matches("tests.rs").count() >= 6, "{text}");
    // The refused edge is not in the graph, and the panic released both locks.
    let _first = first.lock();
    let _second = second.lock();
}

#[test]
fn longer_cycle_across_threads_is_reported() {
    let (a, b, c) = (Mutex::new(()), RwLock::new(()), Mutex::new(()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _a = a.lock();
            let _b = b.read();
        });
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _b = b.write();
            let _c = c.lock();
        });
    });
    let text = violation(|| {
        let _c = c.lock();
        let _a = a.lock();
    });
    assert_eq!(text.matches("was held").count(), 2, "{text}");
}

#[test]
fn acquiring_a_held_lock_is_reported() {
    let mutex = Mutex::new(());
    assert!(violation(|| drop((mutex.lock(), mutex.lock()))).contains("this very lock"));
    let lock = RwLock::new(());
    assert!(violation(|| drop((lock.read(), lock.read()))).contains("this very lock"));
    assert!(violation(|| drop((lock.read(), lock.write()))).contains("this very lock"));
    let _held = mutex.lock();
    assert!(mutex.try_lock().is_none(), "a try does not wait");
    assert!(violation(|| might_lock(&mutex)).contains("this very lock"));
}

#[test]
fn two_locks_of_a_class_need_in_order() {
    let locks: Vec<_> = (0..2).map(Mutex::new).collect();
    assert!(violation(|| drop((locks[0].lock(), locks[1].lock()))).contains("another lock of this class"));
    let _order = in_order("by index");
    drop((locks[0].lock(), locks[1].lock()));
    assert!(violation(|| drop((locks[0].lock(), locks[0].lock()))).contains("this very lock"));
}

#[test]
fn try_lock_adds_edges_only_from_its_lock() {
    let (first, second) = (Mutex::new(1), Mutex::new(2));
    {
        let _second = second.lock();
        let _first = first.try_lock().expect("the lock is free");
    }
    {
        let _first = first.try_lock().expect("the lock is free");
        let _second = second.lock();
    }
    violation(|| {
        let _second = second.lock();
        let _first = first.lock();
    });
}

#[test]
fn condvar_wait_suspends_the_hold() {
    let (mutex, condvar, other) = (Mutex::new(false), Condvar::new(), Mutex::new(()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut guard = mutex.lock();
            while !*guard {
                condvar.wait(&mut guard);
            }
        });
        *mutex.lock() = true;
        condvar.notify_all();
    });
    let mut guard = mutex.lock();
    condvar.wait_for(&mut guard, Duration::ZERO);
    drop(other.lock());
    drop(guard);
    // The wait restored exactly one hold, which dropping the guard removed.
    drop(mutex.lock());
}

#[test]
fn classes_other_than_locks_are_ordered() {
    static HANDLES: Class = Class::new("handles");
    let (commit, transaction) = (Mutex::new(()), 0_u8);
    {
        let _commit = commit.lock();
        HANDLES.might_wait(&transaction);
    }
    let handle = HANDLES.hold(&transaction);
    assert!(violation(|| drop(commit.lock())).contains("handles"));
    // Another thread can release the handle.
    std::thread::scope(|scope| drop(scope.spawn(|| drop(handle))));
    drop(commit.lock());
}
