//! Changes of properties that a file system has from its making: UUIDs, the seed flag, features.
//!
//! Owns [`tune`]; [`change`] has its types. [`members`] reads and writes the superblocks of all
//! devices; [`uuid`] and [`metadata_uuid`] change UUIDs, [`checksum`] the checksum algorithm;
//! [`reader`] reads tree blocks of either form. [`space_trees`] converts the trees that record
//! space, and [`simple_quotas`] turns those on and off.
//!
//! **Invariants**
//! - The file system is not open. The caller holds all of its devices, and no other.
//! - Nothing is written before all refusals are known.
//! - A change is one transaction where that is possible. Another one sets a
//!   flag in all superblocks first and clears it last. No writer opens a file system with such a
//!   flag, and the same change can be started again.
//!
//! **Locks**: none.
//!
//! Counterpart: `btrfstune` of btrfs-progs.

mod change;
mod checksum;
mod csum_tree;
mod members;
mod metadata_uuid;
mod reader;
mod rewrite;
mod simple_quotas;
mod space_trees;
mod uuid;

pub use change::{Tune, Tuned};
use members::Members;
use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use std::sync::Arc;

/// Changes the file system on the devices, which must be all of it. `progress` is told the tree
/// blocks that are done, and their total.
///
/// # Errors
/// Fails before anything is written if a device is absent, stale or of another file system, if
/// another change was interrupted, or if the file system cannot take this change.
pub fn tune(devices: &[Arc<dyn Device>], change: Tune, progress: &mut dyn FnMut(u64, u64)) -> Result<Tuned> {
    let mut members = Members::read(devices)?;
    match change {
        Tune::Uuid(uuid) => uuid::change(members, uuid, progress),
        Tune::MetadataUuid(uuid) => metadata_uuid::change(members, uuid),
        Tune::Seed(seed) => set_seed(&mut members, seed),
        Tune::ExtendedRefs => enable(&mut members, IncompatFeatures::EXTENDED_IREF),
        Tune::SkinnyMetadata => enable(&mut members, IncompatFeatures::SKINNY_METADATA),
        Tune::NoHoles => enable(&mut members, IncompatFeatures::NO_HOLES),
        Tune::Checksum(algorithm) => checksum::change(members, algorithm, progress),
        Tune::BlockGroupTree(on) => space_trees::convert_block_groups(members, on),
        Tune::FreeSpaceTree(on) => space_trees::convert_free_space(&members, on),
        Tune::SimpleQuotas(on) => simple_quotas::change(&members, on),
    }
}

fn set_seed(members: &mut Members, seed: bool) -> Result<Tuned> {
    members.require_finished()?;
    let raw = members.first().raw;
    if seed && raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID) {
        let text = "the kernel mounts no seed with a metadata UUID: give it back the UUID of its tree blocks \
                    first (`papilio tune -M`)";
        return Err(Error::Invalid(text.to_owned()));
    }
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
