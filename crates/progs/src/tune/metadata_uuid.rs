//! A change of the UUID that users see, without a rewrite of the tree blocks.
//!
//! Owns [`change`]. The tree blocks keep their UUID, and the superblocks name it as the metadata
//! UUID. A file system that gets back the UUID of its tree blocks needs no metadata UUID any more.
//!
//! **Order**: all superblocks get CHANGING_FSID_V2, then all get the new UUID without that flag. A
//! device without the flag therefore has the old state if the first step was cut short, or the new
//! state if the second was. To finish, the other devices take the state of that device.

use super::change::Tuned;
use super::members::{Members, metadata_uuid};
use papilio_engine::errors::{Error, Result};
use papilio_format::Uuid;
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use papilio_format::superblock::RawSuperblock;

/// Changes the UUID to `fsid`, after it has finished an interrupted change. Without `fsid`, an
/// interrupted change is finished, and otherwise the UUID is a random one.
pub(super) fn change(mut members: Members, fsid: Option<Uuid>) -> Result<Tuned> {
    if members.interrupted_rewrite().is_some() {
        members.require_finished()?;
    }
    members.require_no_seed()?;
    members.require_no_log()?;
    if fsid.is_some_and(|fsid| fsid.is_nil()) {
        return Err(Error::Invalid("the nil UUID names no file system".to_owned()));
    }
    let flag = SuperblockFlags::CHANGING_FSID_V2;
    let interrupted = members.interrupted_superblocks();
    if let Some(state) = interrupted {
        members.finish(|raw| {
            raw.flags -= flag;
            if let Some(state) = state {
                set(raw, state.fsid);
            }
        })?;
    }
    let resumed = interrupted.is_some();
    let fsid = match fsid {
        Some(fsid) => fsid,
        None if resumed => members.first().raw.fsid,
        None => Uuid::new_v4(),
    };
    if members.first().raw.fsid == fsid {
        return match resumed {
            true => Ok(Tuned { fsid, blocks: 0, resumed }),
            false => Err(Error::Invalid(format!("the file system already has the UUID {fsid}"))),
        };
    }
    members.begin(|raw| raw.flags |= flag)?;
    members.finish(|raw| {
        raw.flags -= flag;
        set(raw, fsid);
    })?;
    Ok(Tuned { fsid, blocks: 0, resumed })
}

/// Sets the UUID that users see.
fn set(raw: &mut RawSuperblock, fsid: Uuid) {
    let blocks = metadata_uuid(raw);
    let differs = fsid != blocks;
    raw.fsid = fsid;
    raw.incompat_flags.set(IncompatFeatures::METADATA_UUID, differs);
    raw.metadata_uuid = if differs { blocks } else { Uuid::nil() };
}
