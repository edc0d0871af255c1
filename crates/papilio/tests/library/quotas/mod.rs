//! Quotas through the public API, judged by the library's own count and, where the kernel has
//! Btrfs, by its rescan and by `btrfs check -Q`.

mod cost;
mod crashes;
mod deep;
mod groups;
mod judge;
mod limits;
mod random;
mod simple;
mod threads;
mod warnings;
mod world;
