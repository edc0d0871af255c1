//! Changes of properties that a file system has from its making: UUIDs, the seed flag, features.
//!
//! Owns [`Tune`] and [`tune`]. [`members`] reads and writes the superblocks of all devices;
//! [`uuid`] and [`metadata_uuid`] change UUIDs; [`reader`] reads tree blocks of either UUID.
//!
//! **Invariants**
//! - The file system is not open. The caller holds all of its devices, and no other.
//! - Nothing is written before all refusals are known.
//! - A change that several writes make sets a flag in all superblocks first and clears it last. No
//!   reader opens a file system with such a flag, and the same change can be started again.
//!
//! **Locks**: none.
//!
//! Counterpart: `btrfstune` of btrfs-progs.

mod members;
mod metadata_uuid;
mod reader;
mod uuid;

use crate::errors::{Error, Result};
use members::Members;
use papilio_device::Device;
use papilio_format::Uuid;
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use std::sync::Arc;

/// A change that [`tune`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tune {
    /// Changes the UUID in the superblocks and in every tree block. `None` finishes a change that
    /// was interrupted, or else chooses a random UUID.
    Uuid(Option<Uuid>),
    /// Changes the UUID in the superblocks only. Tree blocks keep theirs, as the metadata UUID.
    /// `None` chooses a random UUID.
    MetadataUuid(Option<Uuid>),
    /// Sets or clears the seed flag. Devices with the flag are read-only, and other file systems can
    /// build on them.
    Seed(bool),
    /// Enables extended inode references, for more hard links of a file in one directory.
    ExtendedRefs,
    /// Enables skinny extent items for tree blocks that are written from now on.
    SkinnyMetadata,
    /// Allows files from now on to have holes without file extent items.
    NoHoles,
}

/// The result of [`tune`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuned {
    /// The UUID that users see, after the change.
    pub fsid: Uuid,
    /// The tree blocks that were rewritten.
    pub blocks: u64,
    /// Whether this finished a change that was interrupted earlier.
    pub resumed: bool,
}

/// Changes the file system on the devices, which must be all of it. `progress` is told the tree
/// blocks that are done, and their total.
///
/// # Errors
/// Fails before anything is written if a device is absent, stale or of another file system, if
/// another change was interrupted, or if the file system cannot take this change.
pub fn tune(devices: &[Arc<dyn Device>], change: Tune, progress: &mut dyn FnMut(u64, u64)) -> Result<Tuned> {
    let mut members = Members::read(devices)?;
    let random = |uuid: Option<Uuid>| uuid.unwrap_or_else(Uuid::new_v4);
    match change {
        Tune::Uuid(uuid) => uuid::change(members, uuid, progress),
        Tune::MetadataUuid(uuid) => metadata_uuid::change(members, random(uuid)),
        Tune::Seed(seed) => set_seed(&mut members, seed),
        Tune::ExtendedRefs => enable(&mut members, IncompatFeatures::EXTENDED_IREF),
        Tune::SkinnyMetadata => enable(&mut members, IncompatFeatures::SKINNY_METADATA),
        Tune::NoHoles => enable(&mut members, IncompatFeatures::NO_HOLES),
    }
}

fn set_seed(members: &mut Members, seed: bool) -> Result<Tuned> {
    members.require_finished()?;
    let raw = members.first().raw;
    if raw.flags.contains(SuperblockFlags::SEEDING) == seed {
        let state = if seed { "already" } else { "not" };
        return Err(Error::Invalid(format!("the file system is {state} a seed")));
    }
    members.require_no_log()?;
    members.finish(|raw| raw.flags.set(SuperblockFlags::SEEDING, seed))?;
    Ok(Tuned { fsid: raw.fsid, blocks: 0, resumed: false })
}

fn enable(members: &mut Members, feature: IncompatFeatures) -> Result<Tuned> {
    members.require_finished()?;
    members.require_no_seed()?;
    members.finish(|raw| raw.incompat_flags |= feature)?;
    Ok(Tuned { fsid: members.first().raw.fsid, blocks: 0, resumed: false })
}
