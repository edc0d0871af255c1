//! Tests of the data layer, on hand-made trees and with changing files against a model.

mod by_hand;
mod edits;
mod files;
mod random_edits;
