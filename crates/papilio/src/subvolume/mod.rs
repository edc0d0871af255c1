//! Subvolumes and snapshots as a set: what there are, where they hang, what came from what.

mod list;

pub(crate) use list::{list, show};
pub use list::Subvolume;
