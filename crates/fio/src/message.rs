//! What the engine tells a person: one line each on standard error.
//!
//! Not through fio's own log, which `--output` sends to the file that holds the results.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Says a line, unless it was said before: jobs that fail alike say it once.
pub fn say(message: impl Display) {
    let line = format!("papilio: {message}\n");
    let mut said = SAID.lock();
    if said.get_or_insert_default().insert(line.clone()) {
        // Nobody is left to tell if this fails.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
