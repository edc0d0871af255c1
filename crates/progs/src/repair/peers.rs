//! The remedies of one round that make the same change in several trees.
//!
//! Owns [`Peers`]. Snapshots share leaves. A fault in a shared leaf is one of each of its trees,
//! and is mended once, where the leaf is. A fault of one tree alone, such as an inode whose
//! directory was in a leaf that only this tree had, must not change the others.

use super::super::check::remedy::Remedy;
use super::editor::Scope;
use papilio_format::TreeId;
use std::collections::HashMap;

/// The remedies of a round, by the place that they change.
pub(super) struct Peers<'a> {
    by_place: HashMap<u64, Vec<&'a Remedy>>,
}

impl<'a> Peers<'a> {
    pub(super) fn of(remedies: &[&'a Remedy]) -> Self {
        let mut by_place: HashMap<u64, Vec<&Remedy>> = HashMap::new();
        for remedy in remedies.iter().filter(|remedy| remedy.edited_tree().is_some()) {
            by_place.entry(remedy.place()).or_default().push(remedy);
        }
        Self { by_place }
    }

    /// Returns the trees that a remedy concerns, where it changes a shared leaf.
    pub(super) fn scope(&self, remedy: &Remedy) -> Scope {
        if remedy.edited_tree().is_none() {
            return Scope::All;
        }
        let same = self.by_place.get(&remedy.place()).into_iter().flatten();
        let same = same.filter(|other| other.is_same_elsewhere(remedy));
        Scope::These(same.filter_map(|other| other.edited_tree()).collect::<Vec<TreeId>>())
    }
}
