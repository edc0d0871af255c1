//! Whether the sandbox is used.

use std::str::FromStr;

/// Whether a process gives up rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It keeps all of them.
    Off,
    /// It gives up what its job does not need. A system call that is refused fails.
    #[default]
    On,
    /// As [`Self::On`], but a system call that no job has ends the process by `SIGSYS`. Tests find
    /// missing calls by it.
    Kill,
}

impl Mode {
    /// Returns the word that means it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Kill => "kill",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "kill" => Ok(Self::Kill),
            _ => Err("not one of on, off and kill".to_owned()),
        }
    }
}
