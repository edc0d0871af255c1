//! What the items' unit tests share: a geometry, and a look at what a fault says.

use crate::checksum::ChecksumType;
use crate::error::Corrupt;
use crate::features::{CompatRoFeatures, IncompatFeatures};
use crate::superblock::Geometry;
use crate::units::Generation;

/// 16 KiB nodes, 4 KiB sectors, generation 100, every incompat bit.
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

/// Asserts that it failed, and for the reason that contains `why`.
#[track_caller]
pub(crate) fn assert_fault<T: std::fmt::Debug>(result: Result<T, Corrupt>, why: &str) {
    let text = result.expect_err("a fault").to_string();
    assert!(text.contains(why), "{text:?} does not say {why:?}");
}
