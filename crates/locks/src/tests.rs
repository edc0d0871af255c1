//! What is noticed, and what is not.

use crate::{Class, Condvar, Mutex, RwLock, in_order, might_lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

fn complaint(of: impl FnOnce()) -> String {
    let panicked = catch_unwind(AssertUnwindSafe(of)).expect_err("it is noticed");
    panicked.downcast_ref::<String>().expect("with a text").clone()
}

#[test]
fn two_orders_are_noticed_though_nobody_waits() {
    let (first, second) = (Mutex::new(1), Mutex::new(2));
    {
        let _first = first.lock();
        let _second = second.lock();
    }
    let text = complaint(|| {
        let _second = second.lock();
        let _first = first.lock();
    });
    assert!(text.contains("seen before") && text.matches("tests.rs").count() >= 6, "{text}");
    // What was noticed is not entered, and what was held is not any more.
    let _first = first.lock();
    let _second = second.lock();
}

#[test]
fn a_longer_cycle_is_noticed_across_threads() {
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
    let text = complaint(|| {
        let _c = c.lock();
        let _a = a.lock();
    });
    assert_eq!(text.matches("was held").count(), 2, "{text}");
}

#[test]
fn what_a_thread_has_it_cannot_take() {
    let mutex = Mutex::new(());
    assert!(complaint(|| drop((mutex.lock(), mutex.lock()))).contains("that very one"));
    let lock = RwLock::new(());
    assert!(complaint(|| drop((lock.read(), lock.read()))).contains("that very one"));
    assert!(complaint(|| drop((lock.read(), lock.write()))).contains("that very one"));
    let _held = mutex.lock();
    assert!(mutex.try_lock().is_none(), "a try does not wait");
    assert!(complaint(|| might_lock(&mutex)).contains("that very one"));
}

#[test]
fn two_of_a_class_need_an_order() {
    let locks: Vec<_> = (0..2).map(Mutex::new).collect();
    assert!(complaint(|| drop((locks[0].lock(), locks[1].lock()))).contains("another of that class"));
    let _order = in_order("by index");
    drop((locks[0].lock(), locks[1].lock()));
    assert!(complaint(|| drop((locks[0].lock(), locks[0].lock()))).contains("that very one"));
}

#[test]
fn a_try_makes_no_edge_to_what_it_takes_but_from_it() {
    let (first, second) = (Mutex::new(1), Mutex::new(2));
    {
        let _second = second.lock();
        let _first = first.try_lock().expect("it is free");
    }
    {
        let _first = first.try_lock().expect("it is free");
        let _second = second.lock();
    }
    complaint(|| {
        let _second = second.lock();
        let _first = first.lock();
    });
}

#[test]
fn who_waits_for_a_condition_has_let_go() {
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
    // It is not held any more, for all that it was let go of and taken in between.
    drop(mutex.lock());
}

#[test]
fn waits_that_are_no_locks_are_part_of_the_order() {
    static HANDLES: Class = Class::new("handles");
    let (commit, transaction) = (Mutex::new(()), 0_u8);
    {
        let _commit = commit.lock();
        HANDLES.might_wait(&transaction);
    }
    let handle = HANDLES.hold(&transaction);
    assert!(complaint(|| drop(commit.lock())).contains("handles"));
    // Let go of by another thread.
    std::thread::scope(|scope| drop(scope.spawn(|| drop(handle))));
    drop(commit.lock());
}
