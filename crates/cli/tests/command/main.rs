//! The `papilio` command on file systems that the kernel made: what it shows and copies is what a
//! kernel mount shows, and what goes wrong is one line and an exit code.

mod bad_input;
mod change;
mod copy;
mod fixture;
mod mkfs;
mod rootdir;
mod show;
mod usage;
