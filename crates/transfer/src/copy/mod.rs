//! Copies of trees from a file system into another or the same one.

pub mod image;
