//! Devices that fail while the file system is in use.
//!
//! Owns [`Volume::lose_device`]: a device that fails a write or a flush is out of date from then
//! on. It is still written, but read only as the last resort, and its superblock stays old. So the
//! next opening notices, and a scrub heals it.
//!
//! **Invariants**
//! - A failure is forgiven only if every chunk tolerates the loss of the device, together with the
//!   devices that are lost already.
//! - From the loss on, nothing is reported durable before two commits ([`Volume::needs_commit`]).
//!   Only the superblocks on the others tell that this device is out of date, and a power cut
//!   between two superblocks of one commit leaves a difference of one generation, too.
//!
//! **Locks**: that of the snapshots, for a moment; the caller may hold locks of rows.
//!
//! Kernel counterparts: `btrfs_end_bioc` and `bioc->max_errors` (`fs/btrfs/bio.c`),
//! `btrfs_check_rw_degradable` (`fs/btrfs/volumes.c`). The kernel forgives as well, but does not
//! remember.

use super::chunk_map::ChunkMap;
use super::devices::DeviceTable;
use super::volume::Volume;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Commits after which the superblocks tell that a device was lost.
pub(super) const LOSS_COMMITS: u8 = 2;

impl Volume {
    /// Notes that the device of slot `number` failed a write or a flush. Returns whether the others
    /// are enough to go on.
    pub(super) fn lose_device(&self, number: usize) -> bool {
        let _writer = self.install.lock();
        let devices = self.devices.load();
        let Some(slot) = devices.iter().nth(number) else { return false };
        if slot.stale {
            return true;
        }
        let without = devices.with_stale(number, true);
        if !tolerates_losses(&self.chunks.load(), &without) {
            return false;
        }
        tracing::error!(
            device = slot.name().unwrap_or_default(),
            devid = slot.devid().0,
            "the device fails: its copies are not used until a scrub has healed it"
        );
        self.devices.store(Arc::new(without));
        self.lost.store(LOSS_COMMITS, Ordering::Release);
        true
    }

    /// Returns whether a device was lost and the superblocks do not tell yet, so that only a commit
    /// makes anything durable.
    pub(crate) fn needs_commit(&self) -> bool {
        self.lost.load(Ordering::Acquire) > 0
    }
}

/// Returns whether no chunk has more devices that are missing or out of date than its profile
/// tolerates.
fn tolerates_losses(chunks: &ChunkMap, devices: &DeviceTable) -> bool {
    chunks.iter().all(|chunk| {
        let lost = |stripe| devices.find(stripe).is_none_or(|(_, slot)| slot.is_missing() || slot.stale);
        let lost = chunk.stripes().iter().filter(|stripe| lost(stripe)).count();
        lost <= chunk.profile().tolerated_failures()
    })
}
