//! The parent and the clone sources that a stream names.
//!
//! Owns [`find_parent`].

use papilio_engine::errors::{Error, Result};
use papilio_engine::subvolume::Subvolume;
use papilio_format::{Generation, Uuid};
use papilio_fs::FileSystem;

/// Finds the subvolume that a sender names: received with this UUID, or this UUID's own. As for the
/// kernel's tools, the UUID decides; among several the transaction of the last change.
pub(super) fn find_parent(fs: &FileSystem, uuid: Uuid, ctransid: Generation) -> Result<Subvolume> {
    let (mut other, mut changed) = (None, None);
    for own in [false, true] {
        for subvolume in fs.subvolumes()? {
            let (id, generation) = match own {
                false => (subvolume.received_uuid, subvolume.sent),
                true => (subvolume.uuid, subvolume.changed),
            };
            if id != uuid || id.is_nil() || subvolume.is_being_deleted() {
                continue;
            }
            if generation == ctransid && subvolume.is_read_only() {
                return Ok(subvolume);
            }
            match subvolume.is_read_only() {
                true => other = other.or(Some(subvolume)),
                false => changed = Some(subvolume),
            }
        }
    }
    if let Some(subvolume) = other {
        return Ok(subvolume);
    }
    Err(Error::Invalid(match changed {
        Some(found) => format!(
            "the parent with UUID {uuid}, subvolume {}, is not the one that was sent: it changed since",
            found.id
        ),
        None => format!("no subvolume has the parent's UUID {uuid}"),
    }))
}
