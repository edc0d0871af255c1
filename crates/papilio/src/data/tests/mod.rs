//! Tests of the data layer: on trees made by hand, and changing files against a model.

mod by_hand;
mod edits;
mod files;
mod random_edits;
