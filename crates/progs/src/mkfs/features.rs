//! The optional features of a new file system: [`MkfsFeature`], and the table of all names that
//! `mkfs.btrfs -O` has.
//!
//! Owns the names, their meanings, and the versions of Linux and btrfs-progs that have them.
//!
//! Counterpart: btrfs-progs' `common/fsfeatures.c`.

use super::kernel_version::KernelVersion;
use papilio_engine::errors::{Error, Result};

/// An optional feature, as of `mkfs.btrfs -O`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MkfsFeature {
    /// `mixed-bg`: block groups for both data and metadata, for small devices.
    MixedGroups,
    /// `quota`: quota groups that count what each subvolume references.
    Quota,
    /// `extref`: more than a leaf's worth of hard links in one directory.
    ExtendedIref,
    /// `raid56`: the profiles RAID5 and RAID6. On wherever one of them is used.
    Raid56,
    /// `skinny-metadata`: smaller extent items of tree blocks.
    SkinnyMetadata,
    /// `no-holes`: holes in files need no items.
    NoHoles,
    /// `free-space-tree`: a tree of free space, instead of v1 caches.
    FreeSpaceTree,
    /// `raid1c34`: the profiles RAID1C3 and RAID1C4. On wherever one of them is used.
    Raid1c34,
    /// `block-group-tree`: block groups in a tree of their own, for quicker mounts. Needs
    /// `no-holes` and `free-space-tree`.
    BlockGroupTree,
    /// `squota`: simple quotas, which charge each extent to the subvolume that allocated it.
    SimpleQuota,
}

/// The versions that have a feature, as text; `None` for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeatureVersions {
    /// The first version of Linux that mounts a file system with it.
    pub compatible: &'static str,
    /// The first version of Linux with which btrfs-progs call it safe to use.
    pub safe: Option<&'static str>,
    /// The first version of btrfs-progs that has it on by default.
    pub default: Option<&'static str>,
}

/// The meaning of a name of `mkfs.btrfs -O`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeatureMeaning {
    /// A feature.
    Feature(MkfsFeature),
    /// Another name of a feature.
    Alias(MkfsFeature),
    /// A feature that Papilio does not support, and why.
    Refused(&'static str),
}

/// A name of `mkfs.btrfs -O`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeatureName {
    /// The name.
    pub name: &'static str,
    /// A description in a few words.
    pub description: &'static str,
    /// Its meaning.
    pub meaning: FeatureMeaning,
    /// The versions that have it; `None` for an alias.
    pub versions: Option<FeatureVersions>,
}

impl FeatureName {
    const fn new(
        name: &'static str,
        meaning: FeatureMeaning,
        description: &'static str,
        [compatible, safe, default]: [&'static str; 3],
    ) -> Self {
        const fn known(version: &'static str) -> Option<&'static str> {
            if version.is_empty() { None } else { Some(version) }
        }
        let versions = Some(FeatureVersions { compatible, safe: known(safe), default: known(default) });
        Self { name, description, meaning, versions }
    }

    const fn alias(name: &'static str, feature: MkfsFeature, description: &'static str) -> Self {
        Self { name, description, meaning: FeatureMeaning::Alias(feature), versions: None }
    }
}

const EXPERIMENTAL: &str = "an experimental format, which Papilio neither reads nor writes";

use FeatureMeaning::{Feature, Refused};

/// All names, by the version of Linux that has the feature.
pub(super) const NAMES: [FeatureName; 17] = [
    FeatureName::new(
        "mixed-bg",
        Feature(MkfsFeature::MixedGroups),
        "data and metadata in the same block groups, for small devices",
        ["2.6.37", "2.6.37", ""],
    ),
    FeatureName::new(
        "quota",
        Feature(MkfsFeature::Quota),
        "quota groups that count what each subvolume references",
        ["3.4", "", ""],
    ),
    FeatureName::new(
        "extref",
        Feature(MkfsFeature::ExtendedIref),
        "more than a leaf's worth of hard links to a file in one directory",
        ["3.7", "3.12", "3.12"],
    ),
    FeatureName::new("raid56", Feature(MkfsFeature::Raid56), "the profiles RAID5 and RAID6", ["3.9", "", ""]),
    FeatureName::new(
        "skinny-metadata",
        Feature(MkfsFeature::SkinnyMetadata),
        "smaller extent items of tree blocks",
        ["3.10", "3.18", "3.18"],
    ),
    FeatureName::new(
        "no-holes",
        Feature(MkfsFeature::NoHoles),
        "holes in files need no items",
        ["3.14", "4.0", "5.15"],
    ),
    FeatureName::alias("fst", MkfsFeature::FreeSpaceTree, "alias of free-space-tree"),
    FeatureName::new(
        "free-space-tree",
        Feature(MkfsFeature::FreeSpaceTree),
        "a tree of free space in place of cache files",
        ["4.5", "4.9", "5.15"],
    ),
    FeatureName::new(
        "raid1c34",
        Feature(MkfsFeature::Raid1c34),
        "the profiles RAID1C3 and RAID1C4",
        ["5.5", "", ""],
    ),
    FeatureName::new(
        "zoned",
        Refused("zoned devices need writes in sequence, which Papilio does not do"),
        "devices with zones (SMR, ZNS)",
        ["5.12", "", ""],
    ),
    FeatureName::new("extent-tree-v2", Refused(EXPERIMENTAL), "another format of extents", ["5.15", "", ""]),
    FeatureName::alias("bgt", MkfsFeature::BlockGroupTree, "alias of block-group-tree"),
    FeatureName::new(
        "block-group-tree",
        Feature(MkfsFeature::BlockGroupTree),
        "block groups in a tree of their own, for quicker mounts",
        ["6.1", "6.6", "6.19"],
    ),
    FeatureName {
        name: "rst",
        description: "alias of raid-stripe-tree",
        meaning: Refused(EXPERIMENTAL),
        versions: None,
    },
    FeatureName::new(
        "raid-stripe-tree",
        Refused(EXPERIMENTAL),
        "a tree of where the stripes of extents are",
        ["6.7", "", ""],
    ),
    FeatureName::new(
        "squota",
        Feature(MkfsFeature::SimpleQuota),
        "simple quotas, which charge an extent to the subvolume that allocated it",
        ["6.7", "", ""],
    ),
    FeatureName::new(
        "remap-tree",
        Refused(EXPERIMENTAL),
        "a tree that moves logical addresses",
        ["6.20", "", ""],
    ),
];

fn version(text: &str) -> KernelVersion {
    text.parse().expect("the table has versions")
}

impl MkfsFeature {
    /// All features.
    pub const ALL: [Self; 10] = [
        Self::MixedGroups,
        Self::Quota,
        Self::ExtendedIref,
        Self::Raid56,
        Self::SkinnyMetadata,
        Self::NoHoles,
        Self::FreeSpaceTree,
        Self::Raid1c34,
        Self::BlockGroupTree,
        Self::SimpleQuota,
    ];

    /// Returns all names that `mkfs.btrfs -O` has, aliases and those that Papilio refuses included.
    pub fn names() -> &'static [FeatureName] {
        &NAMES
    }

    fn line(self) -> &'static FeatureName {
        let own = |line: &&FeatureName| line.meaning == Feature(self);
        NAMES.iter().find(own).expect("every feature has a name")
    }

    /// Returns the name that `mkfs.btrfs -O` uses.
    pub fn name(self) -> &'static str {
        self.line().name
    }

    /// Returns what the feature is, in a few words.
    pub fn description(self) -> &'static str {
        self.line().description
    }

    /// Whether the feature is on by default. The defaults are those of `mkfs.btrfs` 6.19. Kernels
    /// before 6.1 mount a file system with a block-group tree only for reading.
    pub const fn default_on(self) -> bool {
        matches!(
            self,
            Self::ExtendedIref
                | Self::SkinnyMetadata
                | Self::NoHoles
                | Self::FreeSpaceTree
                | Self::BlockGroupTree
        )
    }

    /// Whether the feature is on by default in a file system for a kernel and its time's tools.
    pub(super) fn default_for(self, kernel: Option<KernelVersion>) -> bool {
        let since = || self.line().versions.and_then(|versions| versions.default);
        let known = |kernel| since().is_some_and(|since| version(since) <= kernel);
        self.default_on() && kernel.is_none_or(known)
    }

    /// Returns the first version of Linux that mounts a file system with the feature.
    pub(super) fn mountable_since(self) -> KernelVersion {
        version(self.line().versions.map_or("0.0", |versions| versions.compatible))
    }

    /// Returns the feature of a name or alias of `mkfs.btrfs -O`, without a `^`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name, and for known features that are not supported.
    pub fn from_name(name: &str) -> Result<Self> {
        let why = match NAMES.iter().find(|line| line.name == name).map(|line| line.meaning) {
            Some(Feature(feature) | FeatureMeaning::Alias(feature)) => return Ok(feature),
            Some(Refused(why)) => why,
            None => "no such feature",
        };
        Err(Error::Invalid(format!("feature {name}: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_features_belong_together() {
        for feature in MkfsFeature::ALL {
            assert_eq!(MkfsFeature::from_name(feature.name()).unwrap(), feature);
            let default = feature.line().versions.unwrap().default;
            assert_eq!(default.is_some(), feature.default_on(), "{}", feature.name());
        }
        assert_eq!(MkfsFeature::from_name("fst").unwrap(), MkfsFeature::FreeSpaceTree);
        for refused in ["zoned", "extent-tree-v2", "rst", "raid-stripe-tree", "remap-tree", "nothing"] {
            let error = MkfsFeature::from_name(refused).unwrap_err().to_string();
            assert!(error.starts_with(&format!("feature {refused}: ")), "{error}");
        }
        assert!(NAMES.iter().enumerate().all(|(at, line)| NAMES[..at].iter().all(|a| a.name != line.name)));
    }
}
