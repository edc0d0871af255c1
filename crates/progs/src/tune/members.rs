//! All devices of a file system that is not open, with their superblocks.
//!
//! Owns [`Members`].
//!
//! **Invariants**
//! - The devices are all of one file system, each once, and of one generation. Their UUIDs may
//!   differ only where a change of UUID was interrupted.
//! - A device that the power cut between the superblocks of the last commit left behind by one
//!   generation gets the superblock that the others have. If that commit changed the UUID, its flag
//!   and the UUID of the tree blocks tell that it belongs to them.
//! - [`Members::begin`] writes the first copies first, so that an interruption leaves its flag.
//!   [`Members::finish`] writes them last, so that the flag stays until all else is durable.
//!
//! **Locks**: none.

use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_engine::volume::superblock_of;
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use papilio_format::superblock::{
    RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, Superblock, superblock_offset,
};
use papilio_format::{DeviceId, SuperblockError, Uuid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The flags of changes that this module can finish.
const RESUMABLE: SuperblockFlags = SuperblockFlags::CHANGING_FSID
    .union(SuperblockFlags::CHANGING_FSID_V2)
    .union(SuperblockFlags::CHANGING_BG_TREE);
/// The flags of a change of the checksum algorithm, which are set together.
const CHANGING_CHECKSUMS: SuperblockFlags =
    SuperblockFlags::CHANGING_DATA_CSUM.union(SuperblockFlags::CHANGING_META_CSUM);

#[derive(Debug)]
struct Member {
    device: Arc<dyn Device>,
    superblock: Superblock,
}

/// The devices and their superblocks.
#[derive(Debug)]
pub(super) struct Members {
    members: Vec<Member>,
    /// The devices of the seeds that the file system builds on. They are never written.
    seeds: Vec<Arc<dyn Device>>,
    /// Whether a device had missed the commit that changed the metadata UUID.
    missed_uuid: bool,
}

impl Members {
    /// Reads the first superblock of each device.
    ///
    /// # Errors
    /// A superblock that cannot be read, a set of devices that is not one file system, or a change
    /// that only btrfs-progs can finish.
    pub(super) fn read(devices: &[Arc<dyn Device>]) -> Result<Self> {
        let mut members = Vec::with_capacity(devices.len());
        for device in devices {
            let superblock = superblock_of(&**device, 0)?;
            members.push(Member { device: Arc::clone(device), superblock });
        }
        let own = members.first().map(|first| first.superblock.raw.fsid);
        let is_seed = |member: &Member| {
            let raw = &member.superblock.raw;
            raw.flags.contains(SuperblockFlags::SEEDING) && Some(raw.fsid) != own
        };
        let (seeds, members): (Vec<_>, Vec<_>) = members.into_iter().partition(is_seed);
        let seeds = seeds.into_iter().map(|seed| seed.device).collect();
        let mut members = Self { members, seeds, missed_uuid: false };
        members.complete_commit();
        members.check()?;
        Ok(members)
    }

    /// Gives the superblock of the last commit to devices that are one generation behind: trees are
    /// on all devices before the first superblock is written.
    fn complete_commit(&mut self) {
        let newest =
            self.members.iter().map(|member| &member.superblock).max_by_key(|found| found.raw.generation);
        let Some(newest) = newest.cloned() else { return };
        for Member { superblock, .. } in &mut self.members {
            let raw = &superblock.raw;
            let missed_uuid = raw.fsid != newest.raw.fsid
                && raw.flags.contains(SuperblockFlags::CHANGING_FSID_V2)
                && metadata_uuid(raw) == metadata_uuid(&newest.raw);
            let is_before = raw.generation.0.checked_add(1) == Some(newest.raw.generation.0);
            if is_before && (raw.fsid == newest.raw.fsid || missed_uuid) {
                self.missed_uuid |= missed_uuid;
                let dev_item = superblock.raw.dev_item;
                *superblock = newest.clone();
                superblock.raw.dev_item = dev_item;
            }
        }
    }

    fn check(&self) -> Result<()> {
        let Some(first) = self.members.first() else {
            return Err(Error::Invalid("no devices were given".to_owned()));
        };
        let mut devids = BTreeSet::<DeviceId>::new();
        for Member { device, superblock } in &self.members {
            let raw = &superblock.raw;
            let mismatch =
                |reason: String| Error::DeviceMismatch { device: device.name().to_owned(), reason };
            if !devids.insert(raw.dev_item.devid) {
                return Err(mismatch(format!("another device has the same devid {}", raw.dev_item.devid)));
            }
            let newest = first.superblock.raw.generation;
            if raw.generation != newest {
                let found = raw.generation;
                return Err(mismatch(format!("has generation {found}, another device {newest}")));
            }
            if device.size() < raw.dev_item.total_bytes {
                let (need, have) = (raw.dev_item.total_bytes, device.size());
                return Err(Error::Truncated { device: device.name().to_owned(), need, have });
            }
            if !self.belongs(raw) {
                return Err(mismatch(format!("belongs to file system {}", raw.fsid)));
            }
            let mut unfinished = raw.flags.unfinished() - RESUMABLE;
            if unfinished == CHANGING_CHECKSUMS {
                unfinished -= CHANGING_CHECKSUMS;
            }
            if !unfinished.is_empty() {
                return Err(Error::Invalid(format!(
                    "{}: an interrupted change has to be finished first: {}",
                    device.name(),
                    unfinished.names()
                )));
            }
        }
        let (given, needed) =
            ((self.members.len() + self.seeds.len()) as u64, first.superblock.raw.num_devices);
        if given != needed {
            return Err(Error::Invalid(format!(
                "the file system has {needed} devices, and {given} were given: give all of them"
            )));
        }
        Ok(())
    }

    /// Returns whether a superblock is of the file system of the others.
    fn belongs(&self, raw: &RawSuperblock) -> bool {
        match self.interrupted_rewrite() {
            Some((old, new)) => raw.fsid == old || raw.fsid == new,
            None if self.any(SuperblockFlags::CHANGING_FSID_V2) => {
                metadata_uuid(raw) == metadata_uuid(&self.first().raw)
            }
            None => raw.fsid == self.first().raw.fsid,
        }
    }

    fn any(&self, flags: SuperblockFlags) -> bool {
        self.members.iter().any(|member| member.superblock.raw.flags.intersects(flags))
    }

    /// Returns the old and the new UUID of an interrupted rewrite of all tree blocks.
    pub(super) fn interrupted_rewrite(&self) -> Option<(Uuid, Uuid)> {
        let raws = || self.members.iter().map(|member| &member.superblock.raw);
        raws()
            .find(|raw| raw.flags.contains(SuperblockFlags::CHANGING_FSID))
            .map(|raw| (raw.metadata_uuid, raw.fsid))
    }

    /// Returns whether a change of the checksum algorithm was interrupted.
    pub(super) fn is_changing_checksums(&self) -> bool {
        self.any(CHANGING_CHECKSUMS)
    }

    /// Returns whether a conversion to or from a block-group tree was interrupted.
    pub(super) fn is_converting_block_groups(&self) -> bool {
        self.any(SuperblockFlags::CHANGING_BG_TREE)
    }

    /// Returns the superblock of a device whose change of the metadata UUID is not under way, if
    /// that of another device is.
    pub(super) fn interrupted_superblocks(&self) -> Option<Option<RawSuperblock>> {
        if self.missed_uuid {
            return Some(Some(self.first().raw));
        }
        let flag = SuperblockFlags::CHANGING_FSID_V2;
        let mut raws = self.members.iter().map(|member| &member.superblock.raw);
        self.any(flag).then(|| raws.find(|raw| !raw.flags.contains(flag)).copied())
    }

    /// Returns the superblock of the first device.
    pub(super) fn first(&self) -> &Superblock {
        &self.members[0].superblock
    }

    /// Returns the devices, those of seeds included.
    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        let members = self.members.iter().map(|member| &member.device);
        members.chain(&self.seeds).cloned().collect()
    }

    /// Refuses a file system with an interrupted change.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn require_finished(&self) -> Result<()> {
        if self.is_changing_checksums() {
            let name = self.first().checksum_type().name();
            return invalid(&format!(
                "a change of the checksums was interrupted: finish it with `papilio tune --csum {name}`"
            ));
        }
        if self.is_converting_block_groups() {
            return invalid(
                "a conversion of the block groups was interrupted: finish it with `papilio tune \
                 --convert-to-block-group-tree`",
            );
        }
        if self.any(SuperblockFlags::CHANGING_FSID) {
            return invalid("a change of the UUID was interrupted: finish it with `papilio tune -u`");
        }
        if self.any(SuperblockFlags::CHANGING_FSID_V2) {
            return invalid(
                "a change of the metadata UUID was interrupted: finish it with `papilio tune -m`",
            );
        }
        Ok(())
    }

    /// Refuses a file system with a log of fsyncs.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn require_no_log(&self) -> Result<()> {
        if self.members.iter().any(|member| member.superblock.raw.log_root.0 != 0) {
            return invalid("it has a log of fsyncs, which a mount for writing has to replay first");
        }
        Ok(())
    }

    /// Refuses a seed: file systems that build on it would not find it any more.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn require_no_seed(&self) -> Result<()> {
        if self.any(SuperblockFlags::SEEDING) {
            return invalid("it is a seed, on which other file systems may build: clear that flag first");
        }
        Ok(())
    }

    /// Refuses a file system that builds on a seed, whose tree blocks nobody may write.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn require_no_seeds_below(&self) -> Result<()> {
        if !self.seeds.is_empty() {
            return invalid(
                "it builds on a seed, whose tree blocks cannot be rewritten: remove the seed first",
            );
        }
        Ok(())
    }

    /// Changes and writes all superblocks, durably; the first copy of each device goes first.
    ///
    /// # Errors
    /// A superblock that no reader would accept, before anything is written; an error of a device.
    pub(super) fn begin(&mut self, change: impl Fn(&mut RawSuperblock)) -> Result<()> {
        self.change(change)?;
        self.write_first()?;
        self.write_others()
    }

    /// As [`Members::begin`], and the first copy of each device goes last.
    ///
    /// # Errors
    /// As [`Members::begin`].
    pub(super) fn finish(&mut self, change: impl Fn(&mut RawSuperblock)) -> Result<()> {
        self.change(change)?;
        self.write_others()?;
        self.write_first()
    }

    fn change(&mut self, change: impl Fn(&mut RawSuperblock)) -> Result<()> {
        for Member { device, superblock } in &mut self.members {
            change(&mut superblock.raw);
            superblock.to_encoded(superblock_offset(0)).map_err(|reason: SuperblockError| {
                Error::Superblock {
                    device: device.name().to_owned(),
                    offset: superblock_offset(0),
                    reason: Box::new(reason),
                    good_copies: Vec::new(),
                    found: None,
                }
            })?;
        }
        Ok(())
    }

    fn write_first(&self) -> Result<()> {
        let place = superblock_offset(0);
        for Member { device, superblock } in &self.members {
            let written = device.write_fua(&superblock.to_bytes(place), place);
            written.map_err(|source| write_error(&**device, 0, source))?;
        }
        Ok(())
    }

    fn write_others(&self) -> Result<()> {
        for Member { device, superblock } in &self.members {
            for copy in 1..SUPERBLOCK_MIRRORS {
                let place = superblock_offset(copy);
                // Like the kernel, skip a copy that would end exactly at the end of the device.
                if place.0 + SUPERBLOCK_SIZE as u64 >= superblock.raw.dev_item.total_bytes {
                    continue;
                }
                let written = device.write_at(&superblock.to_bytes(place), place);
                written.map_err(|source| write_error(&**device, copy, source))?;
            }
            device.flush().map_err(|source| write_error(&**device, 1, source))?;
        }
        Ok(())
    }
}

fn write_error(device: &dyn Device, copy: usize, source: std::io::Error) -> Error {
    Error::SuperblockWrite { device: device.name().to_owned(), copy, source }
}

fn invalid<T>(text: &str) -> Result<T> {
    Err(Error::Invalid(text.to_owned()))
}

/// Returns the UUID in the tree blocks.
pub(super) fn metadata_uuid(raw: &RawSuperblock) -> Uuid {
    match raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID) {
        true => raw.metadata_uuid,
        false => raw.fsid,
    }
}
