//! Trees into and out of file systems: import from a directory, a tar archive or a manifest; send
//! streams and their reception.
//!
//! This crate promises nothing to the outside. Programs use the crate `papilio`, which exports the
//! public types that are defined here.

#![forbid(unsafe_code)]
// Engineers of this project build the documentation with private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod import;
pub mod receive;
pub mod send;
