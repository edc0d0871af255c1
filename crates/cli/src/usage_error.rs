//! [`UsageError`]: arguments that parse but make no sense, which end a run with exit code 2.

use std::fmt;

/// Arguments that parse but are wrong, alone or together.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// Creates an error with the message `text`, one line.
    pub fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
