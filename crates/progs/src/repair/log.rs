//! Repairs of a file system with a log of fsyncs.
//!
//! Owns [`prove_replay`] and [`OVERLAY_LIMIT`]. A repair keeps the generation and takes no block of
//! the log, so the log still fits. It stays, and the next mount for writing replays it. A repair is
//! made only if a replay of the result, in memory, succeeds and leaves a file system without
//! errors.
//!
//! Userspace counterpart: `btrfs check --repair` refuses such a file system.

use super::super::check::{self, CheckOptions};
use papilio_device::{Device, OverlayDevice};
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::Volume;
use std::sync::Arc;

/// The most bytes that a repair in memory keeps, for each device.
pub const OVERLAY_LIMIT: u64 = 1 << 30;

/// Replays the log in memory and checks the result.
///
/// # Errors
/// The log cannot be replayed, or the result has errors.
pub(super) fn prove_replay(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    cache_bytes: usize,
) -> Result<()> {
    let overlay = |device: &Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(Arc::clone(device), OVERLAY_LIMIT))
    };
    let overlays: Vec<_> = devices.iter().map(overlay).collect();
    let fail = |reason: String| {
        Err(Error::Invalid(format!(
            "its log of fsyncs cannot be replayed after a repair ({reason}); \
             `papilio rescue zero-log` forgets the log"
        )))
    };
    let writable = open.clone().write(true).commit_interval(None);
    if let Err(error) = mount::from_devices(overlays.clone(), &writable) {
        return fail(error.to_string());
    }
    let volume = Arc::new(Volume::open(overlays, open)?);
    let report = check::check(&volume, cache_bytes, &CheckOptions::new())?;
    match report.findings.iter().find(|finding| finding.kind.severity() == check::Severity::Error) {
        Some(finding) => fail(finding.to_string()),
        None => Ok(()),
    }
}
