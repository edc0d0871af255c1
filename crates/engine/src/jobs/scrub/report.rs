//! The options of a scrub, and its findings.
//!
//! Owns [`ScrubOptions`], [`ScrubLimit`], [`ScrubCounts`], [`ScrubDevice`] and [`ScrubReport`].
//! Locks: none.
//!
//! Kernel counterpart: `struct btrfs_scrub_progress` (`include/uapi/linux/btrfs.h`), whose fields
//! have the same names and units.

use papilio_format::{DeviceId, LogicalAddress};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a scrub runs.
#[derive(Clone, Debug, Default)]
pub struct ScrubOptions {
    pub(super) read_only: bool,
    pub(super) device: Option<DeviceId>,
    pub(super) start: LogicalAddress,
    pub(super) limit: ScrubLimit,
    pub(super) decode: bool,
}

impl ScrubOptions {
    /// A scrub of all devices that mends the errors it can, where the file system is open for
    /// writing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether compressed extents are decoded after their checksums matched. Decoding takes the
    /// processor several times as long as the rest of a scrub.
    pub fn decode(mut self, decode: bool) -> Self {
        self.decode = decode;
        self
    }

    /// Whether nothing is mended.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Verifies only what is on this device. The others are read to mend it.
    pub fn device(mut self, device: DeviceId) -> Self {
        self.device = Some(device);
        self
    }

    /// Continues at the [`ScrubReport::position`] of a scrub that was cancelled.
    pub fn start_at(mut self, position: LogicalAddress) -> Self {
        self.start = position;
        self
    }

    /// Bounds the speed. The limit can be changed while the scrub runs.
    pub fn limit(mut self, limit: &ScrubLimit) -> Self {
        self.limit = limit.clone();
        self
    }
}

/// The bytes that a scrub may read from all devices together in a second; 0 for no limit. A clone
/// is the same limit.
#[derive(Clone, Debug, Default)]
pub struct ScrubLimit(Arc<AtomicU64>);

impl ScrubLimit {
    /// A limit of this many bytes in a second.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// Changes the limit, also of scrubs that run.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Returns the limit.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one device, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Data extents, once for each 64 KiB of a stripe that they touch.
    pub data_extents_scrubbed: u64,
    /// Tree blocks, once for each 64 KiB of a stripe that they touch.
    pub tree_extents_scrubbed: u64,
    /// Bytes of data.
    pub data_bytes_scrubbed: u64,
    /// Bytes of tree blocks.
    pub tree_bytes_scrubbed: u64,
    /// Sectors that could not be read.
    pub read_errors: u64,
    /// Sectors of data that do not match their checksum.
    pub csum_errors: u64,
    /// Sectors of tree blocks that are wrong: checksum, address, file system or generation.
    pub verify_errors: u64,
    /// Those of `verify_errors` whose tree block is good except for its generation.
    pub generation_errors: u64,
    /// Sectors of data without a checksum.
    pub no_csum: u64,
    /// Superblock copies that are wrong.
    pub super_errors: u64,
    /// Sectors of data or tree blocks without any good copy.
    pub uncorrectable_errors: u64,
    /// Sectors of data or tree blocks with a good copy; they were mended, if that was allowed.
    pub corrected_errors: u64,
    /// Sectors of parity that did not belong to their data. The kernel mends them silently.
    pub parity_errors: u64,
    /// Sectors that could not be written.
    pub write_errors: u64,
}

impl ScrubCounts {
    /// Returns whether a fault of any kind was found.
    pub fn has_errors(&self) -> bool {
        let Self { read_errors, csum_errors, verify_errors, super_errors, .. } = self;
        let Self { uncorrectable_errors, parity_errors, write_errors, .. } = self;
        [read_errors, csum_errors, verify_errors, super_errors, uncorrectable_errors]
            .into_iter()
            .chain([parity_errors, write_errors])
            .any(|count| *count > 0)
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.data_extents_scrubbed += other.data_extents_scrubbed;
        self.tree_extents_scrubbed += other.tree_extents_scrubbed;
        self.data_bytes_scrubbed += other.data_bytes_scrubbed;
        self.tree_bytes_scrubbed += other.tree_bytes_scrubbed;
        self.read_errors += other.read_errors;
        self.csum_errors += other.csum_errors;
        self.verify_errors += other.verify_errors;
        self.generation_errors += other.generation_errors;
        self.no_csum += other.no_csum;
        self.super_errors += other.super_errors;
        self.uncorrectable_errors += other.uncorrectable_errors;
        self.corrected_errors += other.corrected_errors;
        self.parity_errors += other.parity_errors;
        self.write_errors += other.write_errors;
    }
}

/// The part of a report about one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubDevice {
    /// The device.
    pub devid: DeviceId,
    /// Its path; `None` if it is missing, so that nothing of it was verified.
    pub path: Option<String>,
    /// Its counters.
    pub counts: ScrubCounts,
}

/// The most extents that a report names.
pub const MOST_NAMED: usize = 100;

/// How far a scrub is, and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// The devices, in ascending order of devid.
    pub devices: Vec<ScrubDevice>,
    /// Bytes of chunks on the devices that are done, including free space in them.
    pub bytes_done: u64,
    /// Bytes of all chunks on the devices.
    pub bytes_total: u64,
    /// All chunks before this address are done.
    pub position: LogicalAddress,
    /// Ranges of addresses (of up to 16 MiB) that were not verified, or not completely: the extent
    /// tree or the checksum tree has no good copy there.
    pub skipped: u64,
    /// The first cause of those.
    pub first_error: Option<String>,
    /// Compressed extents that match their checksums and do not decode: their writer damaged them,
    /// and only a rewrite of their files from a good copy cures it.
    pub undecodable: u64,
    /// The first [`MOST_NAMED`] of those: the address, the reason and the files of each.
    pub undecodable_extents: Vec<String>,
    /// The first [`MOST_NAMED`] extents with data that has no good copy: the address of the first
    /// such sector, and the files of each.
    pub lost_data: Vec<String>,
    /// Whether the scrub reached the end.
    pub finished: bool,
}

impl ScrubReport {
    /// Returns the counters of all devices together.
    pub fn total(&self) -> ScrubCounts {
        let mut total = ScrubCounts::default();
        self.devices.iter().for_each(|device| total.add(&device.counts));
        total
    }
}
