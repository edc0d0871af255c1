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

pub use chosen::choose_readable;
pub use chunk_tree::read_chunk_tree;
pub use closer::Closer;
pub use open::{from_devices, open_devices, open_path, replayed};
pub use signatures::check_signatures;
pub use sound_leaf::{SoundItems, rescue_forest};
pub use unreplayed::older_files;
