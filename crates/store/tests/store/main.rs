//! Devices in stores that are in memory: segments, encryption, crashes and damage; images at URLs.

mod crashes;
mod encrypted;
mod memory;
mod remote;
mod segments;
