//! Options of a new file system: the builder [`MkfsOptions`].
//!
//! Owns the resolution of the options into a [`Choice`], which is complete and consistent.
//!
//! **Invariant:** a file system of any [`Choice`] can be written, and the kernel accepts it.
//!
//! Counterpart: btrfs-progs' `mkfs/main.c`.

use super::features::MkfsFeature;
use super::kernel_version::KernelVersion;
use papilio_engine::errors::{Error, Result};
use papilio_engine::space::chunk_allocation::devices_min;
use papilio_engine::transaction::clock;
use papilio_format::ChecksumType;
use papilio_format::Uuid;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::inode::Timespec;
use papilio_format::superblock::LABEL_SIZE;

/// Bytes of a sector by default: every kernel mounts it.
const DEFAULT_SECTOR_SIZE: u32 = 4096;
const MAX_SECTOR_SIZE: u32 = 64 << 10;
/// Bytes of a tree block, the default of `mkfs.btrfs` since 3.14.
const DEFAULT_NODE_SIZE: u32 = 16 << 10;
const MAX_NODE_SIZE: u32 = 64 << 10;

/// Options of a new file system. The defaults are those of `mkfs.btrfs` 6.19 without the
/// block-group tree: data single, metadata DUP on one device and RAID1 on several, tree blocks
/// of 16 KiB, CRC-32C, and the features for which [`MkfsFeature::default_on`] is true.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MkfsOptions {
    label: Vec<u8>,
    fsid: Option<Uuid>,
    device_uuid: Option<Uuid>,
    metadata_uuid: Option<Uuid>,
    pub(super) size: Option<u64>,
    node_size: Option<u32>,
    sector_size: Option<u32>,
    checksum: Option<ChecksumType>,
    features: Vec<(MkfsFeature, bool)>,
    data_profile: Option<RaidProfile>,
    metadata_profile: Option<RaidProfile>,
    pub(super) force: bool,
    pub(super) keep_content: bool,
    small_chunks: bool,
    size_most: Option<u64>,
    kernel: Option<KernelVersion>,
    unfinished: bool,
    timestamp: Option<Timespec>,
}

impl MkfsOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the label, at most 255 bytes without NUL or newline.
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the UUID of the file system, random by default. With a [`timestamp`](Self::timestamp)
    /// as well, all other UUIDs that are not set are derived from it, and equal options make equal
    /// images.
    pub fn fsid(mut self, fsid: Uuid) -> Self {
        self.fsid = Some(fsid);
        self
    }

    /// Sets the UUID of the first device.
    pub fn device_uuid(mut self, uuid: Uuid) -> Self {
        self.device_uuid = Some(uuid);
        self
    }

    /// Sets another UUID than [`fsid`](Self::fsid) for tree blocks (the METADATA_UUID feature,
    /// Linux 5.0), as after `btrfstune -m`.
    pub fn metadata_uuid(mut self, uuid: Uuid) -> Self {
        self.metadata_uuid = Some(uuid);
        self
    }

    /// Sets the size of the file system in bytes, rounded down to whole sectors; by default that of
    /// the device. A missing regular file is created and a shorter one extended to this size.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Sets the bytes of a tree block: a power of two from the sector size to 64 KiB; with mixed
    /// block groups the sector size.
    pub fn node_size(mut self, bytes: u32) -> Self {
        self.node_size = Some(bytes);
        self
    }

    /// Sets the bytes of a sector: a power of two from 4 KiB (default) to 64 KiB. Kernels mount
    /// sectors that are no larger than their pages, and 4 KiB.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = Some(bytes);
        self
    }

    /// Sets the checksum algorithm of metadata and data.
    pub fn checksum(mut self, checksum: ChecksumType) -> Self {
        self.checksum = Some(checksum);
        self
    }

    /// Switches a feature on or off; the last call counts.
    pub fn feature(mut self, feature: MkfsFeature, on: bool) -> Self {
        self.features.push((feature, on));
        self
    }

    /// Switches features as `mkfs.btrfs -O` does: comma-separated names, with a `^` in front to
    /// switch off.
    ///
    /// # Errors
    /// As [`MkfsFeature::from_name`].
    pub fn feature_list(mut self, list: &str) -> Result<Self> {
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (bare, on) = name.strip_prefix('^').map_or((name, true), |bare| (bare, false));
            self.features.push((MkfsFeature::from_name(bare)?, on));
        }
        Ok(self)
    }

    /// Sets the profile of data. The default is single.
    pub fn data_profile(mut self, profile: RaidProfile) -> Self {
        self.data_profile = Some(profile);
        self
    }

    /// Sets the profile of metadata. The default is DUP on one device and RAID1 on several. With
    /// mixed block groups, it is that of data as well.
    pub fn metadata_profile(mut self, profile: RaidProfile) -> Self {
        self.metadata_profile = Some(profile);
        self
    }

    /// Sets whether to overwrite existing content of the device.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Sets whether to discard the old content of the device (default true): TRIM on a block
    /// device, a hole in a file.
    pub fn discard(mut self, discard: bool) -> Self {
        self.keep_content = !discard;
        self
    }

    /// Makes a file system that this version of Linux mounts, and the tools of its time read:
    /// features that are newer are off by default, and an option that needs one is an error.
    pub fn kernel(mut self, version: KernelVersion) -> Self {
        self.kernel = Some(version);
        self
    }

    /// Refuses what the kernel that the file system is for cannot mount.
    fn check_kernel(&self, features: &[MkfsFeature]) -> Result<()> {
        let Some(kernel) = self.kernel else { return Ok(()) };
        let since = |major, minor| KernelVersion { major, minor };
        let checksum = self.checksum.filter(|checksum| *checksum != ChecksumType::Crc32c);
        let needs = features.iter().map(|feature| (feature.name().to_owned(), feature.mountable_since()));
        let needs = needs
            .chain(checksum.map(|checksum| (format!("the checksum {checksum}"), since(5, 5))))
            .chain(self.metadata_uuid.map(|_| ("a metadata UUID".to_owned(), since(5, 0))));
        for (what, first) in needs {
            if first > kernel {
                return invalid(format!("{what}: Linux {first} and newer have it, not {kernel}"));
            }
        }
        Ok(())
    }

    /// Limits the size in bytes of the file system on each device, whether the size is given or
    /// that of the device. The default is none.
    pub fn size_at_most(mut self, bytes: Option<u64>) -> Self {
        self.size_most = bytes;
        self
    }

    /// Sets the size of a file system whose size is not set.
    pub fn default_size(mut self, bytes: u64) -> Self {
        self.size = self.size.or(Some(bytes));
        self
    }

    /// Returns the size in bytes on a device, if it is known: that which was set, or `device`, but
    /// not more than the limit.
    pub(super) fn size_of(&self, device: Option<u64>) -> Option<u64> {
        let size = self.size.or(device)?;
        Some(self.size_most.map_or(size, |most| size.min(most)))
    }

    /// Sets whether the first chunks are as small as the format's own needs allow, on one device
    /// with profiles single and DUP (default false). They suit a file system that is shrunk to its
    /// content; see
    /// [`OpenOptions::chunk_bytes`](papilio_engine::options::OpenOptions::chunk_bytes).
    pub fn small_chunks(mut self, small: bool) -> Self {
        self.small_chunks = small;
        self
    }

    /// Sets the time of creation, by default the current time. See [`fsid`](Self::fsid) for the
    /// effect of both together.
    pub fn timestamp(mut self, timestamp: Timespec) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Gives the file system a temporary magic, under which nothing recognizes it. Open it with
    /// [`OpenOptions::unfinished`](papilio_engine::OpenOptions::unfinished), fill it, and call
    /// `FileSystem::finish_making`. An interruption before that
    /// leaves no file system.
    pub fn unfinished(mut self, unfinished: bool) -> Self {
        self.unfinished = unfinished;
        self
    }

    /// Checks the options for a file system on one device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that are not supported or contradict each other.
    pub fn check(&self) -> Result<()> {
        self.resolve(1).map(drop)
    }

    /// Checks the options, and fills in the defaults.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that are not supported or contradict each other.
    pub(super) fn resolve(&self, devices: usize) -> Result<Choice> {
        let given = |feature: MkfsFeature| {
            self.features.iter().rev().find(|(named, _)| *named == feature).map(|(_, on)| *on)
        };
        // The block-group tree is off by default where a feature that it needs is off.
        let needed = [MkfsFeature::FreeSpaceTree, MkfsFeature::NoHoles];
        let wanting = needed.into_iter().any(|feature| given(feature) == Some(false));
        let is_on = |feature: MkfsFeature| match feature {
            MkfsFeature::BlockGroupTree => {
                given(feature).unwrap_or(feature.default_for(self.kernel) && !wanting)
            }
            _ => given(feature).unwrap_or(feature.default_for(self.kernel)),
        };
        let mixed = is_on(MkfsFeature::MixedGroups);
        let (node_size, sector_size) = self.sizes(mixed)?;
        if is_on(MkfsFeature::BlockGroupTree) && wanting {
            return invalid("block-group-tree needs free-space-tree and no-holes");
        }
        if self.label.len() >= LABEL_SIZE {
            return invalid(format!("the label has {} bytes; the maximum is 255", self.label.len()));
        }
        if self.label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return invalid("the label has a NUL or a newline");
        }
        if self.timestamp.is_some_and(|time| time.nanoseconds >= 1_000_000_000) {
            return invalid("the timestamp has a billion nanoseconds or more");
        }
        let (data_profile, metadata_profile) = self.profiles(mixed, devices)?;
        if is_on(MkfsFeature::Quota) && is_on(MkfsFeature::SimpleQuota) {
            return invalid("quota and squota exclude one another");
        }
        let uses = |profiles: [RaidProfile; 2]| {
            profiles.contains(&data_profile) || profiles.contains(&metadata_profile)
        };
        let features = MkfsFeature::ALL.into_iter().filter(|feature| match feature {
            MkfsFeature::Raid56 if uses([RaidProfile::Raid5, RaidProfile::Raid6]) => true,
            MkfsFeature::Raid1c34 if uses([RaidProfile::Raid1c3, RaidProfile::Raid1c4]) => true,
            feature => is_on(*feature),
        });
        let features: Vec<_> = features.collect();
        self.check_kernel(&features)?;
        Ok(Choice {
            label: self.label.clone(),
            uuids: self.uuids(devices)?,
            node_size,
            sector_size,
            checksum: self.checksum.unwrap_or(ChecksumType::Crc32c),
            data_profile,
            metadata_profile,
            timestamp: self.timestamp.unwrap_or_else(clock::now),
            features,
            unfinished: self.unfinished,
            small_chunks: self.small_chunks,
        })
    }

    /// Returns the sizes of a node and of a sector.
    fn sizes(&self, mixed: bool) -> Result<(u32, u32)> {
        let sector_size = self.sector_size.unwrap_or(DEFAULT_SECTOR_SIZE);
        if !sector_size.is_power_of_two() || !(DEFAULT_SECTOR_SIZE..=MAX_SECTOR_SIZE).contains(&sector_size) {
            return invalid(format!("sector size {sector_size}: not a power of two from 4096 to 65536"));
        }
        let default = if mixed { sector_size } else { DEFAULT_NODE_SIZE.max(sector_size) };
        let node_size = self.node_size.unwrap_or(default);
        if !node_size.is_power_of_two() || !(sector_size..=MAX_NODE_SIZE).contains(&node_size) {
            return invalid(format!("node size {node_size}: not a power of two from {sector_size} to 65536"));
        }
        if mixed && node_size != sector_size {
            return invalid(format!(
                "node size {node_size}: mixed block groups need the sector size, {sector_size}"
            ));
        }
        Ok((node_size, sector_size))
    }

    fn profiles(&self, mixed: bool, devices: usize) -> Result<(RaidProfile, RaidProfile)> {
        let (data, metadata) = match mixed {
            true => {
                let given = self.data_profile.or(self.metadata_profile).unwrap_or(RaidProfile::Single);
                (self.data_profile.unwrap_or(given), self.metadata_profile.unwrap_or(given))
            }
            false => (
                self.data_profile.unwrap_or(RaidProfile::Single),
                self.metadata_profile.unwrap_or(if devices > 1 {
                    RaidProfile::Raid1
                } else {
                    RaidProfile::Dup
                }),
            ),
        };
        for profile in [data, metadata] {
            let least = devices_min(profile);
            if devices < least {
                return invalid(format!("profile {profile} needs at least {least} devices, not {devices}"));
            }
        }
        if mixed && data != metadata {
            return invalid(format!(
                "mixed block groups have one profile, not {data} for data and {metadata} for metadata"
            ));
        }
        Ok((data, metadata))
    }

    fn uuids(&self, devices: usize) -> Result<Uuids> {
        let given = [self.fsid, self.device_uuid, self.metadata_uuid];
        if given.into_iter().flatten().any(|uuid| uuid.is_nil()) {
            return invalid("a UUID of all zeros is invalid");
        }
        let fsid = self.fsid.unwrap_or_else(Uuid::new_v4);
        let deterministic = self.fsid.is_some() && self.timestamp.is_some();
        let other = |role: &str| if deterministic { derived(fsid, role) } else { Uuid::new_v4() };
        Ok(Uuids {
            fsid,
            metadata: self.metadata_uuid.filter(|uuid| *uuid != fsid),
            devices: (1..=devices)
                .map(|number| match (number, self.device_uuid) {
                    (1, Some(given)) => given,
                    (1, None) => other("device"),
                    _ => other(&format!("device {number}")),
                })
                .collect(),
            chunk_tree: other("chunk tree"),
            fs_tree: other("subvolume 5"),
        })
    }
}

/// Derives a UUID from another: version 8 (RFC 9562), with the SHA-256 of the UUID and the role.
fn derived(from: Uuid, role: &str) -> Uuid {
    let sum = ChecksumType::Sha256.compute(&[from.as_bytes(), role.as_bytes()].concat());
    let bytes = *sum.as_bytes().first_chunk().expect("SHA-256 has 32 bytes");
    Uuid::new_v8(bytes)
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Invalid(text.into()))
}

/// The UUIDs of a new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uuids {
    /// The UUID of the file system.
    pub(super) fsid: Uuid,
    /// The UUID in tree blocks, if it differs.
    pub(super) metadata: Option<Uuid>,
    /// The UUIDs of the devices, by devid from 1 on.
    pub(super) devices: Vec<Uuid>,
    pub(super) chunk_tree: Uuid,
    pub(super) fs_tree: Uuid,
}

impl Uuids {
    /// Returns the UUID in tree blocks and device items.
    pub(super) fn in_blocks(&self) -> Uuid {
        self.metadata.unwrap_or(self.fsid)
    }
}

/// Resolved options, complete and consistent.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) label: Vec<u8>,
    pub(super) uuids: Uuids,
    pub(super) node_size: u32,
    pub(super) sector_size: u32,
    pub(super) checksum: ChecksumType,
    pub(super) data_profile: RaidProfile,
    pub(super) metadata_profile: RaidProfile,
    pub(super) timestamp: Timespec,
    /// The features that are on.
    pub(super) features: Vec<MkfsFeature>,
    /// Whether the superblocks get the temporary magic.
    pub(super) unfinished: bool,
    /// Whether the first chunks are small.
    pub(super) small_chunks: bool,
}

impl Choice {
    pub(super) fn has(&self, feature: MkfsFeature) -> bool {
        self.features.contains(&feature)
    }

    pub(super) fn incompat(&self) -> IncompatFeatures {
        let mut bits = IncompatFeatures::MIXED_BACKREF;
        bits.set(IncompatFeatures::MIXED_GROUPS, self.has(MkfsFeature::MixedGroups));
        bits.set(IncompatFeatures::EXTENDED_IREF, self.has(MkfsFeature::ExtendedIref));
        bits.set(IncompatFeatures::SKINNY_METADATA, self.has(MkfsFeature::SkinnyMetadata));
        bits.set(IncompatFeatures::NO_HOLES, self.has(MkfsFeature::NoHoles));
        bits.set(IncompatFeatures::RAID56, self.has(MkfsFeature::Raid56));
        bits.set(IncompatFeatures::RAID1C34, self.has(MkfsFeature::Raid1c34));
        bits.set(IncompatFeatures::SIMPLE_QUOTA, self.has(MkfsFeature::SimpleQuota));
        bits.set(IncompatFeatures::METADATA_UUID, self.uuids.metadata.is_some());
        // A kernel sets it at the first mount if a node is larger than its page. Assume a page of
        // 4 KiB, so that the image does not depend on the machine.
        bits.set(IncompatFeatures::BIG_METADATA, self.node_size > 4096);
        bits
    }

    pub(super) fn compat_ro(&self) -> CompatRoFeatures {
        let tree = CompatRoFeatures::FREE_SPACE_TREE.union(CompatRoFeatures::FREE_SPACE_TREE_VALID);
        let mut bits = CompatRoFeatures::empty();
        bits.set(tree, self.has(MkfsFeature::FreeSpaceTree));
        bits.set(CompatRoFeatures::BLOCK_GROUP_TREE, self.has(MkfsFeature::BlockGroupTree));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: MkfsOptions) -> String {
        options.resolve(1).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_those_of_mkfs_btrfs() {
        let choice = MkfsOptions::new().resolve(1).unwrap();
        assert_eq!(choice.node_size, 16384);
        assert_eq!((choice.data_profile, choice.metadata_profile), (RaidProfile::Single, RaidProfile::Dup));
        // The value of `mkfs.btrfs` with tree blocks of 16 KiB.
        assert_eq!(choice.incompat().bits(), 0x361);
        assert_eq!(choice.compat_ro().bits(), 0b1011);
        let older = MkfsOptions::new().feature_list("^no-holes").unwrap().resolve(1).unwrap();
        assert_eq!(older.compat_ro().bits(), 3);
        assert_eq!(choice.uuids.in_blocks(), choice.uuids.fsid);
    }

    #[test]
    fn contradictory_options_are_refused() {
        let new = MkfsOptions::new;
        assert!(refusal(new().sector_size(12288)).contains("sector size 12288"));
        assert!(refusal(new().sector_size(131_072)).contains("4096 to 65536"));
        assert!(refusal(new().sector_size(16384).node_size(8192)).contains("16384 to 65536"));
        assert!(refusal(new().node_size(12288)).contains("node size 12288"));
        assert!(refusal(new().node_size(2048)).contains("4096 to 65536"));
        assert!(refusal(new().node_size(131_072)).contains("4096 to 65536"));
        let mixed = || new().feature(MkfsFeature::MixedGroups, true);
        assert!(refusal(mixed().node_size(16384)).contains("mixed"));
        assert!(
            refusal(mixed().data_profile(RaidProfile::Dup).metadata_profile(RaidProfile::Single))
                .contains("one profile")
        );
        assert!(refusal(new().data_profile(RaidProfile::Raid1)).contains("RAID1"));
        assert!(refusal(new().label(vec![b'x'; 256])).contains("256"));
        assert!(refusal(new().label("a\nb")).contains("newline"));
        assert!(refusal(new().fsid(Uuid::nil())).contains("zeros"));
        for missing in ["^no-holes", "^free-space-tree", "^fst"] {
            let list = format!("block-group-tree,{missing}");
            assert!(refusal(new().feature_list(&list).unwrap()).contains("needs"), "{list}");
        }
    }

    #[test]
    fn feature_lists_are_parsed_as_by_mkfs_btrfs() {
        let options = MkfsOptions::new().feature_list("bgt, ^extref,no-holes").unwrap();
        let choice = options.resolve(1).unwrap();
        assert!(choice.has(MkfsFeature::BlockGroupTree) && choice.has(MkfsFeature::NoHoles));
        assert!(!choice.has(MkfsFeature::ExtendedIref));
        // The last mention counts.
        let choice = MkfsOptions::new().feature_list("bgt,^bgt").unwrap().resolve(1).unwrap();
        assert!(!choice.has(MkfsFeature::BlockGroupTree));
        for (list, why) in [("quota,squota", "exclude"), ("zoned", "zoned"), ("unknown", "no such")] {
            let options = MkfsOptions::new().feature_list(list);
            let error = options.and_then(|options| options.resolve(1)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn profiles_have_their_features() {
        let bits = |list: &str, profile| {
            let options = MkfsOptions::new().feature_list(list).unwrap().data_profile(profile);
            options.resolve(4).unwrap().incompat()
        };
        assert!(bits("^raid56", RaidProfile::Raid5).contains(IncompatFeatures::RAID56));
        assert!(bits("raid56", RaidProfile::Single).contains(IncompatFeatures::RAID56));
        assert!(bits("", RaidProfile::Raid1c4).contains(IncompatFeatures::RAID1C34));
        let plain = bits("", RaidProfile::Raid10);
        assert!(!plain.intersects(IncompatFeatures::RAID56 | IncompatFeatures::RAID1C34));
    }

    #[test]
    fn mixed_block_groups_use_either_given_profile() {
        let mixed = MkfsOptions::new().feature(MkfsFeature::MixedGroups, true);
        let choice = mixed.clone().resolve(1).unwrap();
        assert_eq!((choice.node_size, choice.metadata_profile), (4096, RaidProfile::Single));
        let choice = mixed.metadata_profile(RaidProfile::Dup).resolve(1).unwrap();
        assert_eq!(choice.data_profile, RaidProfile::Dup);
    }

    #[test]
    fn uuids_are_derived_from_the_fsid_only_with_a_timestamp() {
        let fsid = Uuid::from_u128(7);
        let uuids = |options: MkfsOptions| options.resolve(1).unwrap().uuids;
        let fixed = || uuids(MkfsOptions::new().fsid(fsid).timestamp(Timespec::default()));
        assert_eq!(fixed(), fixed());
        let all = [fixed().fsid, fixed().devices[0], fixed().chunk_tree, fixed().fs_tree];
        assert!((1..4).all(|at| !all[..at].contains(&all[at])));
        let random = || uuids(MkfsOptions::new().fsid(fsid));
        assert_ne!(random().devices, random().devices);
    }
}
