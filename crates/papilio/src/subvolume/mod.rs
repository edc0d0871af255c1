//! Subvolumes and snapshots as a set: what there are, where they hang, what came from what; how they are
//! made, moved and deleted.
//!
//! [`create`] and [`delete`] work on one transaction; [`clean`] takes deleted ones apart afterwards, with
//! [`drop_tree`], over as many as it needs.

mod clean;
mod create;
mod delete;
mod drop_tree;
mod list;
mod lookup;
mod properties;
mod rename;
mod root_items;
mod root_refs;
mod uuid_tree;

pub(crate) use clean::clean_step;
pub(crate) use create::{Entry, Numbers, create, snapshot};
pub(crate) use delete::{delete, entry_of, forget_entry};
pub use list::Subvolume;
pub(crate) use list::{list, show};
pub(crate) use lookup::{default_subvolume, subvolume_root};
pub use properties::Received;
pub(crate) use properties::{set_default, set_read_only, set_received};
pub(crate) use rename::{check_movable, entry_moved, rename_across};
