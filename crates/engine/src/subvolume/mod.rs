//! Subvolumes and snapshots: listing, creating, moving and deleting them.
//!
//! [`create`] and [`delete`] work within one transaction. [`clean`] drops the trees of deleted
//! subvolumes afterwards, with [`drop_tree`], in as many transactions as it needs. [`adopt`] makes
//! subvolumes that existed in another file system.

mod adopt;
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

pub use adopt::{adopt, keep_change, link};
pub use clean::{clean_step, drop_relocation_trees};
pub use create::{DirName, Numbers, create, snapshot};
pub use delete::{delete, entry_of, forget_entry};
pub use list::Subvolume;
pub use list::{list, show};
pub use lookup::{default_subvolume, subvolume_root};
pub use properties::Received;
pub use properties::{set_default, set_read_only, set_received};
pub use rename::{check_movable, entry_moved, rename_across};
