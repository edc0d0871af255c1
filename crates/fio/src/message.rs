//! The engine's messages to the user, one line each on standard error.
//!
//! They bypass fio's own log, because `--output` redirects that to the file of results.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Prints a line unless it was printed before: jobs that fail alike print it once.
pub fn say(message: impl Display) {
    let line = format!("papilio: {message}\n");
    let mut said = SAID.lock();
    if said.get_or_insert_default().insert(line.clone()) {
        // A failure to write to standard error cannot be reported.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
