//! A long job of a mount, as its commands see it.
//!
//! Owns [`JobKind`], [`JobState`] and [`JobStatus`].

use papilio_engine::jobs::balance::BalanceReport;
use papilio_engine::jobs::scrub::ScrubReport;
use std::time::Duration;

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Block groups are written anew.
    Balance,
    /// A device is emptied and removed.
    RemoveDevice,
    /// The end of a device is emptied.
    Resize,
    /// All copies are verified.
    Scrub,
    /// A device is copied to another one, which takes its place.
    ReplaceDevice,
}

impl JobKind {
    /// All kinds; a kind's index is its number.
    pub const ALL: [Self; 5] =
        [Self::Balance, Self::RemoveDevice, Self::Resize, Self::Scrub, Self::ReplaceDevice];

    /// Returns the words for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Balance => "a balance",
            Self::RemoveDevice => "the removal of a device",
            Self::ReplaceDevice => "the replacement of a device",
            Self::Resize => "a resize",
            Self::Scrub => "a scrub",
        }
    }
}

/// How a job ended, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It runs.
    Running,
    /// It is complete.
    Done,
    /// It was paused and can be resumed.
    Paused,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed,
}

impl JobState {
    /// All states; a state's index is its number.
    pub const ALL: [Self; 5] = [Self::Running, Self::Done, Self::Paused, Self::Cancelled, Self::Failed];
}

/// A job, and how far it is.
#[derive(Clone, Debug, PartialEq)]
pub struct JobStatus {
    /// Its number; a later job has a larger one.
    pub number: u64,
    /// Its kind.
    pub kind: JobKind,
    /// Whether it runs.
    pub state: JobState,
    /// Seconds since 1970.
    pub started: u64,
    /// How long it runs, or ran.
    pub duration: Duration,
    /// The progress of all kinds but a scrub; of a replacement only the bytes.
    pub moved: BalanceReport,
    /// The progress of a scrub.
    pub scrub: ScrubReport,
    /// The errno of its failure, or 0.
    pub errno: i32,
    /// The text of its failure, or nothing.
    pub error: String,
}
