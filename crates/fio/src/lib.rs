//! An I/O engine for fio: `ioengine=external:/path/libpapilio_fio.so` runs fio's jobs on a Btrfs of
//! Papilio, in fio's own process and without a mount. `docs/fio.md` describes its use.
//!
//! One library supports all versions of fio from 3.28 on and uses none of fio's headers. [`abi`]
//! holds the offsets of fields; [`discover`] determines at run time what differs between builds.
//! The engine refuses a fio that it cannot make out, with the version in the message.
//!
//! The life of a job:
//!
//! 1. fio loads the library and asks for its function table ([`get_ioengine`]).
//! 2. In fio's main process, before any job runs, the engine looks up and lays out each file
//!    ([`files`]). The first file mounts the image; all jobs share the mount ([`mount`]).
//! 3. Each job's thread opens files and issues I/O ([`engine`], [`job`]).
//! 4. The image is unmounted when the process exits.

#![cfg(target_os = "linux")]

pub mod abi;
pub mod discover;
pub mod engine;
pub mod engine_options;
pub mod error;
pub mod files;
pub mod job;
pub mod memory;
pub mod message;
pub mod mount;
pub mod option_table;
pub mod options;

pub use engine::get_ioengine;
