//! Names in the log: short histories that each end in an fsync, most of them about what once went wrong in the
//! kernel's log. After the last fsync the power goes; then Papilio's replay and the kernel's have to agree, to be
//! clean, and to hold what was acknowledged and nothing that cannot be.

mod at;
mod case;
mod data;
mod directories;
mod links;
mod moved_directories;
mod renames;
mod replaced;
mod threads;
