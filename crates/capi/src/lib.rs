//! The C interface of Papilio: Btrfs in user space.
//!
//! The library opens an image or a block device, and reads and writes the file system on it,
//! without a kernel driver and without root.
//!
//! Functions return 0 or a positive number, or a negative errno. After a negative result,
//! `papilio_last_error()` has a message. Objects are handles, which are closed or freed by a
//! function of their own. NULL as a handle gives `-EINVAL`, and a handle that was closed `-EBADF`.
//! Every function may be called from any thread, also with one handle from several.
//!
//! Pointers that a function fills or reads must be valid for the sizes that its text names; NULL is
//! refused with `-EINVAL`, unless the text allows it.

#![allow(clippy::missing_safety_doc)] // The texts, which are those of the C header, say it all.

mod archive;
mod arguments;
mod attributes;
mod backup;
mod check;
mod dedupe;
mod directory;
mod export;
mod failure;
mod file;
mod file_space;
mod file_system;
mod handles;
mod mkfs;
mod names;
mod older;
mod open_options;
mod past;
mod queue;
mod report_text;
mod repository;
mod salvage;
mod sharing;
mod stat;
mod statistics;
mod streams;
mod subvolumes;
mod time;
mod xattrs;

pub use archive::*;
pub use attributes::*;
pub use backup::*;
pub use check::*;
pub use directory::*;
pub use export::*;
pub use failure::{papilio_last_error, papilio_version};
pub use file::*;
pub use file_space::*;
pub use file_system::*;
pub use mkfs::*;
pub use names::*;
pub use older::*;
pub use open_options::*;
pub use past::*;
pub use queue::*;
pub use repository::*;
pub use salvage::*;
pub use sharing::*;
pub use stat::*;
pub use statistics::*;
pub use streams::*;
pub use subvolumes::*;
pub use time::*;
pub use xattrs::*;
