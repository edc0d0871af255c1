//! Changes of many devices that both the kernel and Papilio make: seed devices, balances that were
//! cut short, and the block groups that filters select.

mod filters;
#[path = "../support/images.rs"]
mod images;
mod interrupted;
mod seeds;
mod world;
