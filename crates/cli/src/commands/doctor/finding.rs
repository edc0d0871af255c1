//! The result of one check.
//!
//! Owns [`Finding`] and [`CheckState`].

use serde_json::{Value, json};

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckState {
    Works,
    /// Papilio does without, more slowly or with less.
    Limited,
    Missing,
}

impl CheckState {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    /// The name for `--need`.
    pub(super) name: &'static str,
    pub(super) state: CheckState,
    /// The facts, without names of the machine.
    pub(super) found: String,
    /// How a user can change it.
    pub(super) advice: Option<&'static str>,
}

impl Finding {
    pub(super) fn works(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: CheckState::Works, found: found.into(), advice: None }
    }

    pub(super) fn limited(name: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { name, state: CheckState::Limited, found: found.into(), advice: Some(advice) }
    }

    pub(super) fn missing(name: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { name, state: CheckState::Missing, found: found.into(), advice: Some(advice) }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "state": self.state.word(),
            "found": self.found,
            "advice": self.advice,
        })
    }
}
