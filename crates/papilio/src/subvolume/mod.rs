//! Subvolumes and snapshots as a set: what there are, where they hang, what came from what.

mod list;

pub use list::Subvolume;
pub(crate) use list::{list, show};
