//! Names in the log: short histories that each end in an fsync, most of them after a past bug of
//! the kernel's log. The power fails after the last fsync. Papilio's replay and the kernel's then
//! have to agree, be clean, and have all acknowledged changes in a state that could have existed.

mod at;
mod case;
mod data;
mod directories;
mod links;
mod moved_directories;
mod renames;
mod replaced;
mod threads;
