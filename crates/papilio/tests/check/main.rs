//! The check of whole file systems: clean on what the kernel made, and every planted fault found.

mod clean;
mod image;
mod planted;
