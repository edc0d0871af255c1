//! Shared code of the items' unit tests: a geometry, and an assertion on faults.

use crate::checksum::ChecksumType;
use crate::error::Corrupt;
use crate::features::{CompatRoFeatures, IncompatFeatures};
use crate::geometry::Geometry;
use crate::units::Generation;

/// Returns 16 KiB nodes, 4 KiB sectors, generation 100 and every feature bit.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        node_size: 16384,
        sector_size: 4096,
        checksum_type: ChecksumType::Crc32c,
        incompat: IncompatFeatures::all(),
        compat_ro: CompatRoFeatures::all(),
        metadata_uuid: uuid::Uuid::nil(),
        generation: Generation(100),
    }
}

/// Asserts that `result` is an error whose text contains `why`.
#[track_caller]
pub(crate) fn assert_fault<T: std::fmt::Debug>(result: Result<T, Corrupt>, why: &str) {
    let text = result.expect_err("the input has a fault").to_string();
    assert!(text.contains(why), "{text:?} does not say {why:?}");
}
