//! The use of space of a mount of the kernel's Btrfs.
//!
//! The kernel's ioctls tell the sizes of devices and the used bytes by profile. Its chunk tree
//! tells which device each chunk is on; only root may search it.

use super::{MountedPath, garbled};
use crate::layout::{SPACE_GLOBAL_RESERVE, SpaceList};
use crate::number::Command;
use papilio_engine::jobs::usage::{DeviceUsage, SpaceUsage, Usage};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::{DeviceId, ItemType, Key, Uuid, objectid};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Orders spaces as `btrfs filesystem df`: data and mixed ones, system, metadata, then by profile.
type SpaceKey = (bool, u64, RaidProfile);

/// The chunks of one type and profile.
#[derive(Default)]
struct Space {
    total: u64,
    raw_total: u64,
    by_device: BTreeMap<(DeviceId, Uuid), u64>,
}

fn profile_of(flags: BlockGroupFlags) -> io::Result<RaidProfile> {
    RaidProfile::from_flags(flags & BlockGroupFlags::PROFILE_MASK).map_err(|_| garbled())
}

fn key_of(flags: BlockGroupFlags) -> io::Result<SpaceKey> {
    let kind = flags & BlockGroupFlags::TYPE_MASK;
    Ok((!kind.contains(BlockGroupFlags::DATA), kind.bits(), profile_of(flags)?))
}

/// The size of a block device; `None` if it cannot be opened.
fn size_of_device(path: &Path) -> Option<u64> {
    File::open(path).ok()?.seek(SeekFrom::End(0)).ok()
}

impl MountedPath {
    /// Returns the usage of space of a mount of the kernel.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_ADMIN`; an answer that contradicts another.
    pub(super) fn usage_by_kernel(&self) -> io::Result<Usage> {
        let spaces = self.chunks_of_kernel()?;
        let mut list = SpaceList { slots: 0, ..SpaceList::default() };
        list.slots = list.list.len() as u64;
        self.call(Command::SPACE_INFO, &mut list)?;
        let (mut used, mut global_reserve) = (BTreeMap::new(), 0);
        for space in &list.list[..(list.total as usize).min(list.list.len())] {
            if space.flags & SPACE_GLOBAL_RESERVE != 0 {
                global_reserve = space.total;
            } else {
                *used.entry(key_of(BlockGroupFlags::from_bits_retain(space.flags))?).or_insert(0) +=
                    space.used;
            }
        }
        let devices = self.device_paths()?.into_iter();
        let devices = devices.map(|(devid, path)| self.device_usage(devid, path.as_deref(), &spaces));
        let devices = devices.collect::<io::Result<_>>()?;
        let space_usage = |(key, space): (&SpaceKey, &Space)| {
            let used = used.get(key).copied().unwrap_or(0);
            let raw_used = u128::from(used) * u128::from(space.raw_total) / u128::from(space.total.max(1));
            SpaceUsage {
                kind: BlockGroupFlags::from_bits_retain(key.1),
                profile: key.2,
                total: space.total,
                used,
                raw_total: space.raw_total,
                raw_used: u64::try_from(raw_used).unwrap_or(u64::MAX),
            }
        };
        let spaces = spaces.iter().map(space_usage).collect();
        Ok(Usage { spaces, devices, global_reserve, chunks_without_block_group: 0 })
    }

    fn chunks_of_kernel(&self) -> io::Result<BTreeMap<SpaceKey, Space>> {
        let key =
            |offset| Key { objectid: objectid::FIRST_CHUNK_TREE, item_type: ItemType::CHUNK_ITEM, offset };
        let mut spaces: BTreeMap<SpaceKey, Space> = BTreeMap::new();
        self.search_tree(objectid::CHUNK_TREE, key(0)..=key(u64::MAX), 0, |_, _, item| {
            let chunk = ChunkItem::parse(item).map_err(|_| garbled())?;
            let columns = profile_of(chunk.flags)?.data_stripes(chunk.stripes.len()).max(1);
            let stripe = chunk.length / columns as u64;
            let space = spaces.entry(key_of(chunk.flags)?).or_default();
            space.total += chunk.length;
            for of in &chunk.stripes {
                space.raw_total += stripe;
                *space.by_device.entry((of.devid, of.device_uuid)).or_default() += stripe;
            }
            Ok(())
        })?;
        Ok(spaces)
    }

    fn device_usage(
        &self,
        devid: DeviceId,
        path: Option<&[u8]>,
        spaces: &BTreeMap<SpaceKey, Space>,
    ) -> io::Result<DeviceUsage> {
        let info = self.device_info(devid)?;
        let path = path.map(|path| Path::new(std::ffi::OsStr::from_bytes(path)));
        let uuid = Uuid::from_bytes(info.uuid);
        let on_device = |space: &Space| space.by_device.get(&(devid, uuid)).copied().unwrap_or(0);
        Ok(DeviceUsage {
            devid,
            uuid,
            path: path.map(|path| path.to_string_lossy().into_owned()),
            total: info.total_bytes,
            size: path.and_then(size_of_device),
            allocated: info.bytes_used,
            by_space: spaces.values().map(on_device).collect(),
        })
    }
}
