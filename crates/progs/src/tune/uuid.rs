//! A change of the UUID in the superblocks and in every tree block.
//!
//! Owns [`change`].
//!
//! **Order**
//! 1. All tree blocks are found and counted. Refusals are known after that.
//! 2. All superblocks get the new UUID and CHANGING_FSID. The field for the metadata UUID, which is
//!    unused without that feature, keeps the old one.
//! 3. Every tree block gets the new UUID in its place.
//! 4. All superblocks lose the flag and the old UUID.
//!
//! A power cut leaves blocks of both UUIDs, and maybe torn ones, which [`BlockReader`] reads. The
//! same change then starts again, and writes each block of which a copy differs.

use super::change::Tuned;
use super::members::Members;
use super::reader::{BlockReader, Rewrite};
use super::rewrite::rewrite_all;
use papilio_engine::errors::{Error, Result};
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::Volume;
use papilio_format::Uuid;
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use papilio_format::superblock::RawSuperblock;

/// Changes the UUID to `wanted`, or to a random one, or finishes an interrupted change.
pub(super) fn change(
    mut members: Members,
    wanted: Option<Uuid>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Tuned> {
    let interrupted = members.interrupted_rewrite();
    let (old, new) = match interrupted {
        Some((_, new)) if wanted.is_some_and(|wanted| wanted != new) => {
            return Err(Error::Invalid(format!(
                "a change to the UUID {new} was interrupted: finish it first"
            )));
        }
        Some((old, _)) if old.is_nil() => {
            let text = "a change of the UUID by another program was interrupted: let that finish it";
            return Err(Error::Invalid(text.to_owned()));
        }
        Some(uuids) => uuids,
        None => (members.first().raw.fsid, wanted.unwrap_or_else(Uuid::new_v4)),
    };
    let resumed = interrupted.is_some();
    if !resumed {
        require_rewritable(&members, new)?;
    }
    let begin = |raw: &mut RawSuperblock| {
        raw.flags |= SuperblockFlags::CHANGING_FSID;
        (raw.fsid, raw.dev_item.fsid, raw.metadata_uuid) = (new, new, old);
    };
    if resumed {
        members.begin(begin)?;
    }
    let volume = Volume::open_unfinished(members.devices(), &OpenOptions::new())?;
    let reader = BlockReader::new(&volume, Rewrite::Uuid { old, new });
    let blocks: Vec<_> = reader.all_blocks()?.into_iter().collect();
    if !resumed {
        members.begin(begin)?;
    }
    let written = rewrite_all(&volume, &reader, &blocks, resumed, progress)?;
    members.finish(|raw| {
        raw.flags -= SuperblockFlags::CHANGING_FSID;
        raw.metadata_uuid = Uuid::nil();
    })?;
    Ok(Tuned { fsid: new, blocks: written, resumed })
}

/// Refuses file systems whose tree blocks cannot get the UUID `new`.
fn require_rewritable(members: &Members, new: Uuid) -> Result<()> {
    members.require_finished()?;
    members.require_no_seed()?;
    members.require_no_seeds_below()?;
    members.require_no_log()?;
    let raw = &members.first().raw;
    if raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID) {
        return Err(Error::Invalid(format!(
            "it has the metadata UUID {0}: return to that one with `papilio tune -M {0}` first",
            raw.metadata_uuid
        )));
    }
    if new == raw.fsid || new.is_nil() {
        let why = if new.is_nil() { "the nil UUID names no file system" } else { "it has that UUID already" };
        return Err(Error::Invalid(format!("{new}: {why}")));
    }
    Ok(())
}
