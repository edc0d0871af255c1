//! The options of a receive, and its results.
//!
//! Owns [`Receive`], [`ReceivedSubvolume`] and [`ReceiveObserver`].

use super::position::ResumeToken;
use papilio_engine::errors::Error;

/// Receives streams as `btrfs receive` does.
#[derive(Clone, Debug)]
pub struct Receive {
    pub(super) stop_at_end: bool,
    pub(super) max_errors: u64,
    pub(super) decompress: bool,
    pub(super) resume: bool,
}

/// A subvolume of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedSubvolume {
    /// Its name in the directory that receives.
    pub name: Vec<u8>,
    /// Whether it is complete: it is read-only and has its received UUID.
    pub complete: bool,
    /// Whether it is incomplete, and [`Receive::resume`] can go on with it.
    pub resumable: bool,
    /// The token with which a sender goes on where this run stopped, if the subvolume is resumable.
    pub token: Option<ResumeToken>,
}

/// Watches a receive.
pub trait ReceiveObserver {
    /// A subvolume begins; it is a snapshot of another one if `snapshot` is set.
    fn begins(&mut self, name: &[u8], snapshot: bool);
    /// The stream was read up to this byte.
    fn progress(&mut self, bytes: u64);
    /// A command failed, and the run goes on.
    fn failed(&mut self, error: &Error);
}

/// Watches nothing.
impl ReceiveObserver for () {
    fn begins(&mut self, _name: &[u8], _snapshot: bool) {}
    fn progress(&mut self, _bytes: u64) {}
    fn failed(&mut self, _error: &Error) {}
}

impl Default for Receive {
    fn default() -> Self {
        Self::new()
    }
}

impl Receive {
    /// Receives all streams of the input; the first error ends the run.
    pub const fn new() -> Self {
        Self { stop_at_end: false, max_errors: 1, decompress: false, resume: false }
    }

    /// Ends after the first stream, also if the input goes on.
    pub fn stop_at_end(mut self, stop: bool) -> Self {
        self.stop_at_end = stop;
        self
    }

    /// Ends after this many commands that failed; 0 means never. A subvolume with a failed command
    /// does not become complete.
    pub fn max_errors(mut self, errors: u64) -> Self {
        self.max_errors = errors;
        self
    }

    /// Writes the bytes of compressed extents, in place of the extents as they lie.
    pub fn force_decompress(mut self, decompress: bool) -> Self {
        self.decompress = decompress;
        self
    }

    /// Goes on with a subvolume that an earlier run left incomplete, given the same stream from its
    /// start. Or it is given the rest, which a sender writes for the token of that run.
    /// Commands that were applied then are only read and compared, and subvolumes that are
    /// complete are passed over. A run leaves an incomplete subvolume resumable if its stream ended
    /// early, or a command failed and ended the run. One that was killed does not.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }
}
