//! [`UsageError`]: arguments that parse but make no sense, which end a run with exit code 2.

use std::fmt;

/// The arguments make no sense together.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// With what is wrong, as a line.
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
