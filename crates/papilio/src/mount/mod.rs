//! Opening and closing a file system, and its background threads.

mod chosen;
mod chunk_tree;
mod closer;
mod committer;
mod lost_roots;
mod open;
mod roots;
mod signatures;
mod sound_leaf;
mod stand_ins;
mod unreplayed;

pub(crate) use chosen::choose_readable;
pub(crate) use chunk_tree::read_chunk_tree;
pub(crate) use closer::Closer;
pub(crate) use open::{from_devices, open_devices, open_path, replayed};
pub use signatures::check_signatures;
pub(crate) use sound_leaf::{SoundItems, rescue_forest};
pub(crate) use unreplayed::older_files;
