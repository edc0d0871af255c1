//! Tests of whole volumes: [`reading`] with everything there, with devices lost and with devices
//! that fail, [`writing`] the same, [`opening`] good and bad ones, and [`kernel`], on what mkfs and
//! the kernel wrote.

mod kernel;
mod log_superblocks;
mod opening;
mod reading;
mod writing;
