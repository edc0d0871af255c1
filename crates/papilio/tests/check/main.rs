//! The check of whole file systems: no findings for file systems of the kernel, and every planted
//! fault is found.

mod clean;
mod image;
#[path = "../support/in_memory.rs"]
mod in_memory;
mod planted;
mod rebuilt;
mod refused;
mod repaired;
mod superblocks;
