//! How far a change that is made in steps has come.

/// Extents that a step handles, so that it ends soon and queues few references.
pub(crate) const STEP_EXTENTS: usize = 1024;

/// The outcome of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Progress {
    /// The change is complete.
    Done,
    /// The same call continues the change, in this transaction handle or another.
    More,
}
