//! Adding a device to a file system, and removing one.
//!
//! Owns [`FsInfo::add_device`], [`FsInfo::remove_device`] and the emptying of a device or
//! of its end, which shrinking uses too.
//!
//! **Invariants**
//! - A device leaves the table of devices, and with it the superblocks' count, in the commit that
//!   removes its item.
//! - Its own superblocks are wiped after that commit is on disk, so that no scan finds it.
//! - The superblock's total is never below the sum of the device items: it grows first and shrinks
//!   last.
//!
//! **Locks:** those of a commit and of a transaction handle.
//!
//! Kernel counterparts: `btrfs_init_new_device`, `btrfs_rm_device`, `btrfs_shrink_device`
//! (`fs/btrfs/volumes.c`).

use super::balance::BalanceReport;
use crate::errors::{Error, Result};
use crate::file::exclusive::Operation;
use crate::file::fs_info::FsInfo;
use crate::jobs::signature::find_signature;
use crate::space::SpaceKind;
use crate::space::chunk_allocation::{DeviceSpace, devices_min};
use crate::volume::superblock_of;
use papilio_device::{Access, Device};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, Generation, ItemType, Key, PhysicalAddress, Uuid, objectid};
use std::sync::Arc;

/// The smallest device in bytes: room for a minimal chunk after the reserved start.
const SMALLEST: u64 = 16 << 20;
/// Bytes at the start of a new device that are cleared.
const CLEARED: u64 = 1 << 20;
/// Tree items that a change of the devices touches.
const ITEMS: u64 = 4;

impl FsInfo {
    /// Adds a device, and returns its id. The change is durable on return. New chunks may use the
    /// device at once; [`FsInfo::balance`] spreads what is there already.
    ///
    /// # Errors
    /// - [`Error::Occupied`] unless `force`: the device holds another file system.
    /// - [`Error::Busy`] while another operation runs.
    /// - [`Error::Invalid`]: it is one of this file system, is read-only or too small.
    /// - As [`FsInfo::sync`].
    ///
    /// `seeds` are all devices so far if they are seeds, and empty otherwise.
    pub fn add_device(
        &self,
        device: Arc<dyn Device>,
        force: bool,
        seeds: &[Arc<dyn Device>],
    ) -> Result<DeviceId> {
        let sprouting = !seeds.is_empty();
        let transactions = self.transactions()?;
        transactions.check_running()?;
        let _running = self.exclusive.begin(Operation::AddDevice)?;
        let volume = self.volume();
        let name = device.name().to_owned();
        let sector_size = volume.geometry().sector_size;
        let total_bytes = device.size() - device.size() % u64::from(sector_size);
        if device.access() != Access::ReadWrite {
            return Err(Error::Invalid(format!("{name}: is not open for writing")));
        }
        if total_bytes < SMALLEST {
            return Err(Error::Invalid(format!(
                "{name}: {total_bytes} bytes are too few, at least {SMALLEST} are needed"
            )));
        }
        let devices = volume.devices();
        let is_own = |own: &Arc<dyn Device>| Arc::ptr_eq(own, &device);
        let mut all = devices.iter().filter_map(|slot| slot.device.as_ref()).chain(seeds);
        if all.any(is_own) {
            return Err(Error::Invalid(format!("{name}: is a device of this file system")));
        }
        if !force && let Some(found) = find_signature(&*device)? {
            return Err(Error::Occupied { device: name, found });
        }
        let devid = devices.iter().map(|slot| slot.devid().0).max().map_or(1, |last| last + 1);
        let item = DeviceItem {
            devid: DeviceId(devid),
            total_bytes,
            bytes_used: 0,
            io_align: sector_size,
            io_width: sector_size,
            sector_size,
            device_type: 0,
            generation: Generation(0),
            start_offset: 0,
            dev_group: 0,
            seek_speed: 0,
            bandwidth: 0,
            uuid: Uuid::new_v4(),
            fsid: volume.superblock().metadata_uuid(),
        };
        // An older file system must not be found beside the new superblocks.
        clear(&*device)?;
        volume.announce_device(&*device, &transactions.superblock(), item)?;
        transactions.update_superblock(|raw| {
            raw.num_devices += 1;
            raw.total_bytes += total_bytes;
        });
        volume.add_device(item, Arc::clone(&device));
        let space = DeviceSpace { devid: item.devid, uuid: item.uuid, total_bytes, used: Vec::new() };
        // Where nothing else may be written, the item itself needs a chunk on the new device.
        let room = if sprouting { self.first_chunks(space.clone()) } else { Ok(()) };
        let added = room.and_then(|()| {
            transactions.change(ITEMS, |handle| {
                let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, devid);
                handle.live_tree(objectid::CHUNK_TREE)?.edit(handle).insert(key, &item.to_bytes())
            })?;
            self.note_generations(seeds)
        });
        if let Err(error) = added {
            volume.forget_device(item.devid);
            transactions.update_superblock(|raw| {
                raw.num_devices -= 1;
                raw.total_bytes -= total_bytes;
            });
            return Err(error);
        }
        if !sprouting {
            transactions.chunks().add_device(space, transactions.space());
        }
        self.commit()?;
        Ok(item.devid)
    }

    /// Makes the first chunks for tree blocks on a device.
    fn first_chunks(&self, device: DeviceSpace) -> Result<()> {
        let transactions = self.transactions()?;
        let (chunks, space, volume) = (transactions.chunks(), transactions.space(), self.volume());
        chunks.add_device(device, space);
        chunks.allocate(volume, space, SpaceKind::System)?;
        chunks.allocate(volume, space, SpaceKind::Metadata)
    }

    /// Notes the generations of the seeds' superblocks in their device items, in the running
    /// transaction.
    fn note_generations(&self, seeds: &[Arc<dyn Device>]) -> Result<()> {
        let transactions = self.transactions()?;
        for seed in seeds {
            let raw = superblock_of(&**seed, 0)?.raw;
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, raw.dev_item.devid.0);
            let noted = transactions.change(1, |handle| {
                let tree = handle.live_tree(objectid::CHUNK_TREE)?;
                let Some(item) = tree.tree().get(&key)? else { return Ok(None) };
                let item = DeviceItem::parse(item.data()).map_err(|reason| Error::Item {
                    tree: objectid::CHUNK_TREE,
                    key,
                    reason,
                })?;
                let item = DeviceItem { generation: raw.generation, ..item };
                tree.edit(handle).put(key, &item.to_bytes())?;
                Ok(Some(item))
            })?;
            if let Some(item) = noted {
                self.volume().set_device_item(item)?;
            }
        }
        Ok(())
    }

    /// Moves the chunk tree off the seeds.
    pub fn move_system_chunks(&self) -> Result<()> {
        let map = self.volume().chunk_map();
        for group in self.transactions()?.space().block_groups() {
            let on_seed = map.find(group.range.start).is_some_and(|chunk| self.volume().is_on_seed(chunk));
            if on_seed && group.flags.contains(BlockGroupFlags::SYSTEM) {
                self.relocate_block_group(&group, &mut |_| true)?;
            }
        }
        Ok(())
    }

    /// Moves everything off a device and removes it. Calls `progress` after each batch; where it
    /// returns false, the device stays, with what was not moved. Returns whether it was removed.
    /// Its superblocks are wiped.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: it is the last device, or a profile in use needs as many as there are.
    /// - [`Error::Busy`] while another operation or a send runs.
    /// - [`Error::NoSpace`]: the others have no room. Nothing is lost.
    /// - As [`FsInfo::balance`].
    pub fn remove_device(
        &self,
        devid: DeviceId,
        progress: &mut dyn FnMut(&BalanceReport) -> bool,
    ) -> Result<bool> {
        let transactions = self.transactions()?;
        let _running = self.exclusive.begin(Operation::RemoveDevice)?;
        let volume = self.volume();
        let devices = volume.devices();
        let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == devid);
        let slot =
            slot.ok_or_else(|| Error::Invalid(format!("device {devid} is not part of the file system")))?;
        let is_seed = volume.is_seed(devid);
        // A seed serves other file systems, too: it keeps its superblocks.
        let device = slot.device.clone().filter(|_| !is_seed);
        let rest = devices.iter().filter(|slot| slot.in_chunk_tree && slot.devid() != devid);
        let rest = rest.filter(|slot| slot.device.is_some() && !volume.is_seed(slot.devid())).count();
        // The data of a seed takes a profile that the other devices allow.
        self.check_profiles_without(rest, is_seed)?;
        if !self.vacate(devid, 0, progress)? {
            return Ok(false);
        }
        let removed = transactions.change(ITEMS, |handle| {
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, devid.0);
            handle.live_tree(objectid::CHUNK_TREE)?.edit(handle).remove(key)?;
            let stats = Key::new(objectid::DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0);
            let tree = handle.live_tree(objectid::DEV_TREE)?;
            if tree.tree().get(&stats)?.is_some() {
                tree.edit(handle).remove(stats)?;
            }
            Ok(())
        });
        removed?;
        let total = volume.forget_device(devid).map_or(0, |item| item.total_bytes);
        transactions.chunks().forget_device(devid, transactions.space());
        transactions.update_superblock(|raw| {
            raw.num_devices -= 1;
            raw.total_bytes -= total;
        });
        self.commit()?;
        if let Some(device) = device {
            wipe_superblocks(&*device)?;
        }
        Ok(true)
    }

    /// Moves everything off a device that lies at byte `end` or behind. Returns whether all of it
    /// is gone.
    pub(super) fn vacate(
        &self,
        devid: DeviceId,
        end: u64,
        progress: &mut dyn FnMut(&BalanceReport) -> bool,
    ) -> Result<bool> {
        let transactions = self.transactions()?;
        self.clean_subvolumes()?;
        self.heal();
        self.sync()?;
        let (chunks, space) = (transactions.chunks(), transactions.space());
        let devices = self.volume().devices();
        let is_missing = devices.iter().any(|slot| slot.devid() == devid && slot.device.is_none());
        if is_missing || self.volume().is_seed(devid) {
            // New chunks never lie on a device that is missing, nor on a seed.
            return self.vacate_confined(devid, end, progress);
        }
        let before = chunks.confine(devid, end, space)?;
        let moved = self.vacate_confined(devid, end, progress);
        if !matches!(moved, Ok(true)) {
            chunks.confine(devid, before, space)?;
        }
        moved
    }

    fn vacate_confined(
        &self,
        devid: DeviceId,
        end: u64,
        progress: &mut dyn FnMut(&BalanceReport) -> bool,
    ) -> Result<bool> {
        let space = self.transactions()?.space();
        let map = self.volume().chunk_map();
        let behind = |group: &crate::space::NewBlockGroup| {
            let Some(chunk) = map.find(group.range.start) else { return false };
            let bytes = chunk.length() / chunk.data_columns() as u64;
            chunk.stripes().iter().any(|stripe| stripe.devid == devid && stripe.offset.0 + bytes > end)
        };
        let groups: Vec<_> = space.block_groups().into_iter().filter(behind).collect();
        let mut report = BalanceReport {
            considered: groups.len() as u32,
            expected: groups.len() as u32,
            expected_bytes: groups.iter().map(|group| group.used).sum(),
            ..BalanceReport::default()
        };
        for group in groups {
            let gone = self.relocate_block_group(&group, &mut |bytes| {
                report.bytes += bytes;
                progress(&report)
            })?;
            if !gone {
                return Ok(false);
            }
            report.completed += 1;
        }
        Ok(true)
    }

    /// Checks that every profile in use on writable devices is possible on so many of them.
    fn check_profiles_without(&self, devices: usize, is_seed: bool) -> Result<()> {
        if devices == 0 {
            return Err(Error::Invalid("it is the last device of the file system".to_owned()));
        }
        if is_seed {
            return Ok(());
        }
        for group in self.transactions()?.space().block_groups() {
            let Ok(profile) = RaidProfile::from_flags(group.flags & BlockGroupFlags::PROFILE_MASK) else {
                continue;
            };
            let need = devices_min(profile);
            if devices < need {
                return Err(Error::Invalid(format!(
                    "profile {profile} needs {need} devices, and {devices} would be left: convert it first"
                )));
            }
        }
        Ok(())
    }
}

/// Clears the start of a device, and its superblocks.
fn clear(device: &dyn Device) -> Result<()> {
    write_zeros(device, 0, CLEARED)?;
    wipe_superblocks(device)
}

/// Clears all superblock copies, so that no scan finds the device.
fn wipe_superblocks(device: &dyn Device) -> Result<()> {
    for copy in 0..SUPERBLOCK_MIRRORS {
        let place = superblock_offset(copy).0;
        if place + SUPERBLOCK_SIZE as u64 <= device.size() {
            write_zeros(device, place, SUPERBLOCK_SIZE as u64)?;
        }
    }
    let failed = |source| Error::Device {
        device: device.name().to_owned(),
        operation: "flush",
        offset: PhysicalAddress(0),
        length: 0,
        source,
    };
    device.flush().map_err(failed)
}

fn write_zeros(device: &dyn Device, start: u64, length: u64) -> Result<()> {
    let (offset, length) = (PhysicalAddress(start), length as usize);
    device.write_at(&vec![0; length], offset).map_err(|source| Error::Device {
        device: device.name().to_owned(),
        operation: "write",
        offset,
        length,
        source,
    })
}
