//! Trees into and out of file systems: import from a directory, a tar archive or a manifest; export
//! to a directory or an archive; copies between file systems; deduplication; send streams, their
//! reception in an image or a directory of the host, and their use as archives.
//!
//! This crate promises nothing to the outside. Programs use the crate `papilio`, which exports the
//! public types that are defined here.

#![forbid(unsafe_code)]
// Engineers of this project build the documentation with private items.
#![allow(rustdoc::private_intra_doc_links)]

mod batches;
pub mod checksum_dedupe;
pub mod copy;
pub mod dedupe;
pub mod export;
mod fakeroot;
pub mod file_versions;
pub mod file_walk;
pub mod history;
pub mod host_calls;
pub mod image_path;
pub mod import;
mod read_around;
pub mod receive;
pub mod send;
pub mod stream;
pub mod text;
