//! Rescue: clones, deleted files, and random damage on file systems that the kernel wrote.

mod clone;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod deleted;
mod found_devices;
mod ledger;
mod older;
mod said;
mod salvage;
mod stock;
mod surgery;
mod truth;
mod undelete;
mod world;
