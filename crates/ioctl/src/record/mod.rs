//! The encoding of subvolumes and of the usage of space in pages of our own ioctls.
//!
//! Owns both directions of the encoding. Numbers are little-endian; strings follow their length of
//! four bytes. The reader trusts nothing: truncated input is `None`.

mod jobs;

use papilio_engine::data::{FileExtent, FileExtentKind};
use papilio_engine::jobs::usage::{DeviceUsage, SpaceUsage, Usage};
use papilio_engine::subvolume::Subvolume;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::Timespec;
use papilio_format::items::qgroup::{QgroupId, QgroupStatusFlags};
use papilio_format::items::root::RootFlags;
use papilio_format::{DeviceId, FileOffset, Generation, InodeNumber, LogicalAddress, TreeId, Uuid};
use papilio_fs::{QgroupUsage, QuotaStatus};

/// The encoding of an absent number.
const NONE: u64 = u64::MAX;

/// A writer of records.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Appends a number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// Appends bytes after their count.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).expect("names and paths are shorter than 4 GiB");
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    fn uuid(&mut self, uuid: Uuid) -> &mut Self {
        self.0.extend_from_slice(uuid.as_bytes());
        self
    }

    fn time(&mut self, time: Timespec) -> &mut Self {
        self.number(time.seconds as u64).number(time.nanoseconds.into())
    }

    /// Appends a subvolume.
    pub fn subvolume(&mut self, subvolume: &Subvolume) {
        self.number(subvolume.id.0)
            .number(subvolume.parent.map_or(NONE, |parent| parent.0))
            .number(subvolume.directory.map_or(NONE, |directory| directory.0))
            .uuid(subvolume.uuid)
            .uuid(subvolume.parent_uuid)
            .uuid(subvolume.received_uuid)
            .number(subvolume.generation.0)
            .number(subvolume.created.0)
            .number(subvolume.changed.0)
            .number(subvolume.sent.0)
            .number(subvolume.received.0)
            .time(subvolume.creation_time)
            .time(subvolume.change_time)
            .time(subvolume.send_time)
            .time(subvolume.receive_time)
            .number(subvolume.flags.bits())
            .number(subvolume.refs.into())
            .bytes(&subvolume.name)
            .number(subvolume.path.is_some().into())
            .bytes(subvolume.path.as_deref().unwrap_or_default());
    }

    /// Writes the spaces of a usage; [`Writer::device`] writes its devices.
    pub fn usage(&mut self, usage: &Usage) {
        self.number(usage.global_reserve)
            .number(usage.chunks_without_block_group)
            .number(usage.spaces.len() as u64);
        for space in &usage.spaces {
            self.number(space.kind.bits())
                .number(space.profile.flags().bits())
                .number(space.total)
                .number(space.used)
                .number(space.raw_total)
                .number(space.raw_used);
        }
    }

    /// Appends the state of quotas.
    pub fn quota_status(&mut self, status: &QuotaStatus) {
        self.number(status.flags.bits()).number(status.rescanned.0).number(status.qgroups as u64);
    }

    /// Appends a qgroup.
    pub fn qgroup(&mut self, group: &QgroupUsage) {
        self.number(group.id.0)
            .number(group.referenced)
            .number(group.exclusive)
            .number(group.max_referenced.is_some().into())
            .number(group.max_referenced.unwrap_or(0))
            .number(group.max_exclusive.is_some().into())
            .number(group.max_exclusive.unwrap_or(0));
        for ids in [&group.parents, &group.members] {
            self.number(ids.len() as u64);
            for id in ids {
                self.number(id.0);
            }
        }
    }

    /// Appends an extent of a file; `shared` says whether other files use it.
    pub fn extent(&mut self, extent: &FileExtent, shared: bool) {
        let kind = match extent.kind {
            FileExtentKind::Inline => 0,
            FileExtentKind::Regular => 1,
            FileExtentKind::Preallocated => 2,
        };
        self.number(extent.start.0)
            .number(extent.length)
            .number(kind)
            .number(extent.compression as u64)
            .number(extent.address.0)
            .number(extent.stored)
            .number(extent.uncompressed)
            .number(extent.offset)
            .number(extent.generation.0)
            .number(shared.into());
    }

    /// Appends the use of a device.
    pub fn device(&mut self, device: &DeviceUsage) {
        self.number(device.devid.0)
            .uuid(device.uuid)
            .number(device.path.is_some().into())
            .bytes(device.path.as_deref().unwrap_or_default().as_bytes())
            .number(device.total)
            .number(device.size.unwrap_or(NONE))
            .number(device.allocated)
            .number(device.by_space.len() as u64);
        for &bytes in &device.by_space {
            self.number(bytes);
        }
    }
}

/// A reader of records.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn optional(&mut self) -> Option<Option<u64>> {
        self.number().map(|number| (number != NONE).then_some(number))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        self.take(length as usize)
    }

    fn uuid(&mut self) -> Option<Uuid> {
        Uuid::from_slice(self.take(16)?).ok()
    }

    fn time(&mut self) -> Option<Timespec> {
        let seconds = self.number()? as i64;
        let nanoseconds = u32::try_from(self.number()?).ok()?;
        Some(Timespec { seconds, nanoseconds })
    }

    pub(crate) fn subvolume(&mut self) -> Option<Subvolume> {
        Some(Subvolume {
            id: TreeId(self.number()?),
            parent: self.optional()?.map(TreeId),
            directory: self.optional()?.map(InodeNumber),
            uuid: self.uuid()?,
            parent_uuid: self.uuid()?,
            received_uuid: self.uuid()?,
            generation: Generation(self.number()?),
            created: Generation(self.number()?),
            changed: Generation(self.number()?),
            sent: Generation(self.number()?),
            received: Generation(self.number()?),
            creation_time: self.time()?,
            change_time: self.time()?,
            send_time: self.time()?,
            receive_time: self.time()?,
            flags: RootFlags::from_bits_retain(self.number()?),
            refs: u32::try_from(self.number()?).ok()?,
            name: self.bytes()?.to_vec(),
            path: {
                let there = self.number()? != 0;
                let path = self.bytes()?.to_vec();
                there.then_some(path)
            },
        })
    }

    pub(crate) fn usage(&mut self) -> Option<Usage> {
        let (global_reserve, chunks_without_block_group) = (self.number()?, self.number()?);
        let count = self.number()?;
        let spaces = (0..count)
            .map(|_| {
                Some(SpaceUsage {
                    kind: BlockGroupFlags::from_bits_retain(self.number()?),
                    profile: RaidProfile::from_flags(BlockGroupFlags::from_bits_retain(self.number()?))
                        .ok()?,
                    total: self.number()?,
                    used: self.number()?,
                    raw_total: self.number()?,
                    raw_used: self.number()?,
                })
            })
            .collect::<Option<_>>()?;
        Some(Usage { spaces, devices: Vec::new(), global_reserve, chunks_without_block_group })
    }

    pub(crate) fn quota_status(&mut self) -> Option<QuotaStatus> {
        Some(QuotaStatus {
            flags: QgroupStatusFlags::from_bits_retain(self.number()?),
            rescanned: LogicalAddress(self.number()?),
            qgroups: usize::try_from(self.number()?).ok()?,
        })
    }

    pub(crate) fn qgroup(&mut self) -> Option<QgroupUsage> {
        let id = QgroupId(self.number()?);
        let (referenced, exclusive) = (self.number()?, self.number()?);
        let mut limit = || Some((self.number()? != 0, self.number()?));
        let (max_referenced, max_exclusive) = (limit()?, limit()?);
        let mut ids = || {
            let count = self.number()?;
            (0..count).map(|_| self.number().map(QgroupId)).collect::<Option<Vec<_>>>()
        };
        Some(QgroupUsage {
            id,
            referenced,
            exclusive,
            max_referenced: max_referenced.0.then_some(max_referenced.1),
            max_exclusive: max_exclusive.0.then_some(max_exclusive.1),
            parents: ids()?,
            members: ids()?,
        })
    }

    /// Returns an extent, and whether it is shared.
    pub(crate) fn extent(&mut self) -> Option<(FileExtent, bool)> {
        let extent = FileExtent {
            start: FileOffset(self.number()?),
            length: self.number()?,
            kind: match self.number()? {
                0 => FileExtentKind::Inline,
                1 => FileExtentKind::Regular,
                2 => FileExtentKind::Preallocated,
                _ => return None,
            },
            compression: Compression::from_raw(u8::try_from(self.number()?).ok()?).ok()?,
            address: LogicalAddress(self.number()?),
            stored: self.number()?,
            uncompressed: self.number()?,
            offset: self.number()?,
            generation: Generation(self.number()?),
        };
        Some((extent, self.number()? != 0))
    }

    pub(crate) fn device(&mut self) -> Option<DeviceUsage> {
        Some(DeviceUsage {
            devid: DeviceId(self.number()?),
            uuid: self.uuid()?,
            path: {
                let there = self.number()? != 0;
                let path = String::from_utf8_lossy(self.bytes()?).into_owned();
                there.then_some(path)
            },
            total: self.number()?,
            size: self.optional()?,
            allocated: self.number()?,
            by_space: {
                let count = self.number()?;
                (0..count).map(|_| self.number()).collect::<Option<_>>()?
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::{FileSystem, MkfsOptions, OpenOptions};

    #[test]
    fn records_round_trip_and_truncated_ones_fail() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("records.img");
        papilio::mkfs(&image, &MkfsOptions::new().size(128 << 20)).unwrap();
        let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
        fs.create_subvolume("/a").unwrap();
        fs.snapshot("/a", "/b", true).unwrap();
        let mut writer = Writer::default();
        let subvolumes = fs.subvolumes().unwrap();
        subvolumes.iter().for_each(|subvolume| writer.subvolume(subvolume));
        let mut reader = Reader(&writer.0);
        for subvolume in &subvolumes {
            assert_eq!(reader.subvolume().as_ref(), Some(subvolume));
        }
        assert!(reader.is_empty() && reader.subvolume().is_none());
        for end in 0..80 {
            assert!(Reader(&writer.0[..end]).subvolume().is_none());
        }

        let mut usage = fs.usage().unwrap();
        let mut writer = Writer::default();
        writer.usage(&usage);
        usage.devices.iter().for_each(|device| writer.device(device));
        let mut reader = Reader(&writer.0);
        let mut read = reader.usage().unwrap();
        read.devices.push(reader.device().unwrap());
        assert!(reader.is_empty());
        assert_eq!(read, usage);
        usage.devices[0].path = None;
        usage.devices[0].size = None;
        let mut writer = Writer::default();
        writer.device(&usage.devices[0]);
        assert_eq!(Reader(&writer.0).device().unwrap(), usage.devices[0]);
        for end in 0..writer.0.len() {
            assert!(Reader(&writer.0[..end]).device().is_none());
        }
    }
}
