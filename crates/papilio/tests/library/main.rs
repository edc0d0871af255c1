//! The tests of the library that can share a process.
//!
//! Those that replace the allocator, measure the process's memory, or run under other kernels are
//! programs of their own.

mod archives;
mod balance;
#[path = "../support/bridge.rs"]
mod bridge;
#[path = "../support/changed_archives.rs"]
mod changed_archives;
mod check;
mod colliding_references;
mod commits;
mod defragment;
mod device_errors;
mod devices;
mod direct_io;
mod examples;
mod failed_changes;
mod fsync;
mod fsync_names;
mod full;
#[path = "../support/held_device.rs"]
mod held_device;
mod image_dump;
#[path = "../support/images.rs"]
mod images;
#[path = "../support/in_memory.rs"]
mod in_memory;
mod io_queue;
mod live_archives;
mod log_blocks;
mod log_items;
mod logged;
mod mirrors;
mod mkfs;
mod moved_crashes;
mod moved_open;
mod moves;
mod moving_fails;
mod open_files;
mod overwrites;
mod promised;
mod queue_threads;
mod quotas;
mod reading;
mod replay;
mod requests_in_flight;
mod scrub;
mod send;
mod shared_defragment;
mod shared_recompress;
mod subvolumes;
mod sync_data;
mod times;
mod transfers;
mod tune;
mod verity;
mod write_back;
mod write_hole;
mod writing;
