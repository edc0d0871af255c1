//! Hostile images: real file systems with bytes changed and checksums made right again, so that
//! the change gets past the first gate, and what must hold of Papilio whatever the bytes say.
//!
//! Fuzz targets feed [`mutate`] with a fuzzer's bytes; the tests feed it with seeded ones.

#![forbid(unsafe_code)]

mod base_image;
mod exercise;
mod mutation;

pub use base_image::BaseImage;
pub use exercise::{Summary, exercise};
pub use mutation::mutate;
