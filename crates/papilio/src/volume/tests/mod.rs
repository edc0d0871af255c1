//! Tests of whole volumes: [`reading`] with everything there, with devices lost and with devices
//! that fail, and [`opening`] good and bad ones.

mod opening;
mod reading;
