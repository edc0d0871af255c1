//! Devices in stores that are in memory: segments, crashes and damage; images at URLs.

mod crashes;
mod memory;
mod remote;
mod segments;
