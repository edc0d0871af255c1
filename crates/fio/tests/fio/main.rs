//! The real fio, with jobs on small images. What it leaves behind is judged by the library's own check, and by
//! the kernel and `btrfs check` where those can be had.

mod files;
mod harness;
mod operations;
mod refusals;
