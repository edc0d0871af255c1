//! Devices in stores that are in memory: segments, crashes and damage.

mod crashes;
mod memory;
mod segments;
