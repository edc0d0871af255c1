//! The parts of the sandbox that hold after a step.

use std::fmt;

/// One part of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// How it holds, or why nothing of it does.
    pub state: Result<String, String>,
}

/// The parts of the sandbox after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The parts, in the order in which they were applied.
    pub parts: Vec<Part>,
}

impl Report {
    /// Adds a part.
    #[cfg(target_os = "linux")]
    pub(crate) fn add<E: fmt::Display>(&mut self, name: &'static str, state: Result<String, E>) {
        self.parts.push(Part { name, state: state.map_err(|error| error.to_string()) });
    }

    /// Returns whether a part of this name holds.
    pub fn holds(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name && part.state.is_ok())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            match &part.state {
                Ok(state) => write!(f, "{comma}{} {state}", part.name)?,
                Err(reason) => write!(f, "{comma}no {} ({reason})", part.name)?,
            }
        }
        Ok(())
    }
}
