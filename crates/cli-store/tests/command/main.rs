//! Tests of the `papilio` command on images at URLs and devices in object stores.

mod backup;
#[path = "../../../cli/tests/common/mod.rs"]
mod common;
mod remote;
mod store;
mod store_crashes;
mod store_encrypted;
mod store_follow;
mod store_traffic;
