//! Simulated runs and hostile images for tests of Papilio.
//!
//! - Hostile images: real file systems with changed bytes and recomputed checksums, so that the
//!   change passes the first check. Fuzz targets feed [`mutate`] with a fuzzer's bytes; tests feed
//!   it with seeded ones. [`exercise`] then reads everything, or [`exercise_changes`] writes.
//! - Random operations beside a model: a [`Session`] runs each [`Operation`] drawn by a
//!   [`Generator`] on a file system and on a [`Model`], and compares the answers. [`verify`]
//!   compares the whole content.
//! - Hostile streams: [`hostile`] changes real send streams, repairs their checksums, and receives
//!   them on a prepared file system.
//! - Failures: the operations of a run are shortened with [`minimise`] to those that a failure
//!   needs. [`report`] prints them. A run of several threads is a list of [`Turn`]s.
//! - Faults: [`faults`], [`crash`] and [`fsyncs`] check the state after device failures and power
//!   losses, [`lies`] that after writes which a device reported as done and lost.

#![forbid(unsafe_code)]

mod base_image;
mod configuration;
pub mod crash;
mod crew;
mod exercise;
mod exercise_change;
pub mod faults;
pub mod fsyncs;
pub mod history;
pub mod hostile;
pub mod lies;
pub mod model;
mod moments;
mod mutation;
mod operation;
mod promise;
mod promised_space;
mod quota_numbers;
mod random;
mod session;
mod shared;
mod shrink;
mod small_image;
mod source;
mod turns;
pub mod verify;

pub use base_image::BaseImage;
pub use configuration::Configuration;
pub use exercise::{Summary, exercise, exercise_reads};
pub use exercise_change::{ChangeSummary, exercise_changes};
pub use model::Model;
pub use mutation::{change, change_back, mutate};
pub use operation::{FileAt, Fill, NewFile, Operation, Reply, Text};
pub use random::{Generator, Scope};
pub use session::{Counts, Outcome, Session};
pub use shared::SharedRun;
pub use shrink::{Failure, minimise, report};
pub use small_image::small_images;
pub use turns::{Order, Turn};
