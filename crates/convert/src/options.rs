//! The options of a conversion, and its progress.
//!
//! Owns [`ConvertOptions`], [`TargetLabel`], [`TargetUuid`], [`ConvertStage`] and
//! [`ConvertProgress`].

use crate::error::{ConvertError, Result};
use papilio_format::{ChecksumType, Uuid};
use papilio_progs::mkfs::{MkfsFeature, MkfsOptions};

/// The label of the new file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TargetLabel {
    /// None.
    #[default]
    Empty,
    /// That of the source.
    Copied,
    /// This one.
    Given(Vec<u8>),
}

/// The UUID of the new file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetUuid {
    /// A random one.
    #[default]
    New,
    /// That of the source.
    Copied,
    /// This one.
    Given(Uuid),
}

/// Options of a conversion.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConvertOptions {
    pub(crate) node_size: u32,
    pub(crate) checksum: ChecksumType,
    pub(crate) label: TargetLabel,
    pub(crate) uuid: TargetUuid,
    pub(crate) features: String,
    pub(crate) checksums: bool,
    pub(crate) xattrs: bool,
    pub(crate) inline: bool,
    pub(crate) names_bytes: usize,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            node_size: 16 << 10,
            checksum: ChecksumType::Crc32c,
            label: TargetLabel::Empty,
            uuid: TargetUuid::New,
            features: String::new(),
            checksums: true,
            xattrs: true,
            inline: true,
            names_bytes: 256 << 20,
        }
    }
}

impl ConvertOptions {
    /// Returns the defaults: blocks of 16 KiB, CRC-32C of all data, attributes copied, small files
    /// in the trees.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the bytes of a tree block.
    pub fn node_size(mut self, bytes: u32) -> Self {
        self.node_size = bytes;
        self
    }

    /// Sets the checksum algorithm.
    pub fn checksum(mut self, checksum: ChecksumType) -> Self {
        self.checksum = checksum;
        self
    }

    /// Sets the label.
    pub fn label(mut self, label: TargetLabel) -> Self {
        self.label = label;
        self
    }

    /// Sets the UUID.
    pub fn uuid(mut self, uuid: TargetUuid) -> Self {
        self.uuid = uuid;
        self
    }

    /// Switches features as `mkfs.btrfs -O` does: comma-separated names, with a `^` in front to
    /// switch off.
    pub fn features(mut self, list: impl Into<String>) -> Self {
        self.features = list.into();
        self
    }

    /// Sets whether data gets checksums (default true).
    pub fn data_checksums(mut self, checksums: bool) -> Self {
        self.checksums = checksums;
        self
    }

    /// Sets whether extended attributes and access control lists are copied (default true).
    pub fn xattrs(mut self, xattrs: bool) -> Self {
        self.xattrs = xattrs;
        self
    }

    /// Sets whether small files go into the trees (default true).
    pub fn inline(mut self, inline: bool) -> Self {
        self.inline = inline;
        self
    }

    /// Sets the most bytes of names that are in memory at once. Directories are read again for
    /// each further part. The default is 256 MiB, about eight million names.
    pub fn names_bytes(mut self, bytes: usize) -> Self {
        self.names_bytes = bytes.max(4096);
        self
    }

    /// Returns the options of the empty file system.
    ///
    /// # Errors
    /// Options that are not supported or contradict each other.
    pub(crate) fn mkfs(&self, source_label: &[u8], source_uuid: Uuid) -> Result<MkfsOptions> {
        if !(4096..=65536).contains(&self.node_size) || !self.node_size.is_power_of_two() {
            let text = format!("node size {}: not a power of two from 4096 to 65536", self.node_size);
            return Err(ConvertError::Invalid(text));
        }
        let refused = [
            MkfsFeature::MixedGroups,
            MkfsFeature::Quota,
            MkfsFeature::SimpleQuota,
            MkfsFeature::Raid56,
            MkfsFeature::Raid1c34,
        ];
        for name in self.features.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if !name.starts_with('^') && refused.contains(&MkfsFeature::from_name(name)?) {
                return Err(ConvertError::Invalid(format!("a conversion cannot have the feature {name}")));
            }
        }
        let label = match &self.label {
            TargetLabel::Empty => Vec::new(),
            TargetLabel::Copied => source_label.to_vec(),
            TargetLabel::Given(label) => label.clone(),
        };
        let options = MkfsOptions::new()
            .node_size(self.node_size)
            .checksum(self.checksum)
            .label(label)
            .feature_list(&self.features)?;
        let options = match self.uuid {
            TargetUuid::New => options,
            TargetUuid::Copied => options.fsid(source_uuid),
            TargetUuid::Given(uuid) => options.fsid(uuid),
        };
        options.check().map_err(|error| ConvertError::Invalid(error.to_string()))?;
        Ok(options)
    }

    /// Whether holes have no items.
    pub(crate) fn has_no_holes(&self) -> bool {
        let names = self.features.split(',').map(str::trim);
        names.fold(true, |on, name| match name {
            "no-holes" => true,
            "^no-holes" => false,
            _ => on,
        })
    }
}

/// A stage of a conversion or a way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvertStage {
    /// Reading and checking the source; progress counts inodes.
    Reading,
    /// Copying inodes; progress counts inodes.
    Inodes,
    /// Computing checksums of data; progress counts bytes.
    Checksums,
    /// Making the image of the source; progress counts bytes.
    Image,
    /// Checking the new file system, or the image on the way back; progress counts bytes there.
    Checking,
    /// Writing the superblocks, or what they had covered.
    Switching,
}

/// Progress of a conversion or a way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertProgress {
    /// The stage, which sets the unit of the counts.
    pub stage: ConvertStage,
    /// How much of the stage is done.
    pub done: u64,
    /// How much there is; 0 if it is not known.
    pub total: u64,
}

/// Receives progress.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(ConvertProgress);
