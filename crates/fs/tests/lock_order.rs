//! Forbidden orders of locks are detected, in a build that checks them.
#![cfg(feature = "lock-order")]

#[test]
fn dropping_a_file_under_locks_of_its_deletion_panics() {
    papilio_fs::lock_order::dropping_a_file_under_locks_of_its_deletion_panics();
}
