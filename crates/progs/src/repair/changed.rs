//! The result of a change of one structure.
//!
//! Owns [`Changed`].

use super::super::check::damage::Damage;
use papilio_format::TreeId;

/// The lines about a change that was made.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) changes: Vec<String>,
    pub(super) refused: Vec<String>,
    pub(super) losses: Vec<String>,
    /// The parts of trees that lost items.
    pub(super) lost_parts: Vec<Damage>,
    /// The subvolume that was undeleted.
    pub(super) revived: Option<TreeId>,
}
