//! Changes of many devices that both the kernel and Papilio make: seed devices, and balances that
//! were cut short.

#[path = "../support/images.rs"]
mod images;
mod interrupted;
mod seeds;
mod world;
