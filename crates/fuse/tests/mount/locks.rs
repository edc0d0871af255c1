//! Whether another process can lock a file.

use rustix::fs::FlockOperation;

pub const FILE: &str = "PAPILIO_TEST_LOCK";
pub const ANSWER: &str = "lock: ";

/// The other process: this test does nothing unless it is asked to be one.
#[test]
fn try_lock() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    println!("\n{ANSWER}{:?}", rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive));
}
