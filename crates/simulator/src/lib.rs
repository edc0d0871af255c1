//! Hostile images: real file systems with bytes changed and checksums made right again, so that
//! the change gets past the first gate, and what must hold of Papilio whatever the bytes say.
//!
//! Fuzz targets feed [`mutate`] with a fuzzer's bytes; the tests feed it with seeded ones.
//!
//! And random operations beside a model: a [`Session`] asks each [`Operation`] that a [`Generator`] draws of
//! a file system and of a [`Model`], and compares the answers; [`verify`] compares all that is there.

#![forbid(unsafe_code)]

mod base_image;
mod configuration;
pub mod crash;
mod exercise;
pub mod faults;
pub mod fsyncs;
pub mod model;
mod moments;
mod mutation;
mod operation;
mod promise;
mod random;
mod session;
pub mod verify;

pub use base_image::BaseImage;
pub use configuration::Configuration;
pub use exercise::{Summary, exercise};
pub use model::Model;
pub use mutation::mutate;
pub use operation::{FileAt, Fill, NewFile, Operation, Reply, Text};
pub use random::{Generator, Scope};
pub use session::{Counts, Outcome, Session};
