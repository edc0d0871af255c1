//! Runs the real fio with jobs on small images. The library's own check, the kernel and `btrfs
//! check`, where available, verify the resulting file system.

mod files;
mod harness;
mod operations;
mod refusals;
