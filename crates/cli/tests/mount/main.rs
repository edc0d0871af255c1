//! Tests of `papilio mount` with the real binary: background and foreground servers, commands on
//! mounted paths, the helpers of mount(8), all ways to unmount, and refusals.

mod bad_input;
mod becomes_writable;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod compressed;
mod defragment;
mod devices;
mod direct_reads;
mod discards;
mod durable;
mod ends;
mod everyday;
mod everywhere;
mod failing;
mod full;
mod helpers;
mod images;
mod in_use;
mod joined;
mod kernel;
mod kernel_jobs;
mod kernel_stops;
mod late_writes;
mod layouts;
mod logs;
mod lost_disk;
mod maintenance;
mod namespaces;
mod newer;
mod quotas;
mod redundancy;
mod refusals;
mod root_items;
mod run;
mod scripts;
mod short_writes;
mod siblings;
mod space;
mod unfit;
mod verity;
mod world;
