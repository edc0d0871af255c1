//! The tests of the oracle.

mod fuse_ring;
mod kernel;
mod populate;
