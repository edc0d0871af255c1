//! A broken rule and its location.

use std::fmt;

/// A broken rule, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the workspace's root.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// The problem and, if known, the remedy.
    pub message: String,
}

impl Finding {
    /// A finding at `line` (from 1) of `path`.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
