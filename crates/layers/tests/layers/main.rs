//! Devices over devices, in memory and as the real tools make them.

#[path = "../common/mod.rs"]
mod common;
mod luks;
mod lvm;
mod md;
mod real_images;
