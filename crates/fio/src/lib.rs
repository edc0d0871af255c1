//! An I/O engine for fio: `ioengine=external:/path/libpapilio_fio.so` runs fio's jobs on a Btrfs of Papilio, in
//! fio's own process, without a mount. See `docs/fio.md` for how to use it.
//!
//! One file serves all versions of fio from 3.28 on. It uses none of fio's headers: where fields lie is in
//! [`abi`], and what differs between builds is found out at run time by [`discover`]; what cannot be found
//! out is a refusal that names the version.
//!
//! The way of a job: fio loads the library and asks for its table of functions ([`get_ioengine`]). In fio's
//! main process, before any job runs, each file is looked up and laid out ([`files`]); the first of that mounts
//! the image, and all jobs share the mount ([`mount`]). Then each job's thread opens files and issues I/O
//! ([`engine`], [`job`]). The image is unmounted when the process exits.

#![cfg(target_os = "linux")]

pub mod abi;
pub mod discover;
pub mod engine;
pub mod error;
pub mod files;
pub mod job;
pub mod memory;
pub mod message;
pub mod mount;
pub mod options;

pub use engine::get_ioengine;
