//! Named shapes of file systems: each checksum, compression, profile, node size and feature once.
//!
//! The matrix leaves out features that `mkfs.btrfs` 6.2 cannot make (block-group tree, raid-stripe
//! tree).

use crate::mkfs::{FileSystemSpec, Quota};

/// A shape with a name.
#[derive(Clone, Debug)]
pub struct Preset {
    /// The name, for the command line and for messages.
    pub name: String,
    /// The file system's parameters.
    pub spec: FileSystemSpec,
}

/// Returns the shape with the given name.
pub fn preset(name: &str) -> Option<FileSystemSpec> {
    matrix().into_iter().find(|preset| preset.name == name).map(|preset| preset.spec)
}

/// Returns all shapes.
pub fn matrix() -> Vec<Preset> {
    let mut all = vec![Preset { name: "default".to_owned(), spec: FileSystemSpec::default() }];
    let mut add = |name: &str, change: &dyn Fn(&mut FileSystemSpec)| {
        let mut spec = FileSystemSpec::default();
        change(&mut spec);
        all.push(Preset { name: name.to_owned(), spec });
    };
    for csum in ["crc32c", "xxhash", "sha256", "blake2"] {
        add(csum, &|spec| spec.csum = Some(csum.to_owned()));
    }
    for (name, option) in [
        ("zlib", "compress=zlib"),
        ("zlib-9", "compress-force=zlib:9"),
        ("lzo", "compress=lzo"),
        ("lzo-force", "compress-force=lzo"),
        ("zstd", "compress=zstd"),
        ("zstd-1", "compress=zstd:1"),
        ("zstd-15", "compress-force=zstd:15"),
        ("nodatasum", "nodatasum"),
        ("nodatacow", "nodatacow"),
        ("no-inline", "max_inline=0"),
    ] {
        add(name, &|spec| spec.mount_options = vec![option.to_owned()]);
    }
    for (name, devices) in [
        ("single", 1),
        ("dup", 1),
        ("raid0", 3),
        ("raid1", 3),
        ("raid1c3", 4),
        ("raid1c4", 5),
        ("raid10", 4),
        ("raid5", 3),
        ("raid5-4", 4),
        ("raid6", 4),
        ("raid6-5", 5),
    ] {
        add(name, &|spec| {
            let profile = name.split('-').next().map(str::to_owned);
            (spec.devices, spec.data_profile, spec.metadata_profile) = (devices, profile.clone(), profile);
        });
    }
    add("single-3", &|spec| {
        spec.devices = 3;
        spec.data_profile = Some("single".to_owned());
        spec.metadata_profile = Some("raid1".to_owned());
    });
    for (name, size) in [("node-4k", 4096), ("node-8k", 8192), ("node-32k", 32768), ("node-64k", 65536)] {
        add(name, &|spec| spec.nodesize = Some(size));
    }
    add("mixed", &|spec| {
        // Mixed block groups require nodes as large as sectors.
        (spec.mixed, spec.nodesize) = (true, Some(4096));
    });
    for feature in ["no-holes", "skinny-metadata", "extref"] {
        add(&format!("without-{feature}"), &|spec| spec.features = vec![format!("^{feature}")]);
    }
    add("v1-cache", &|spec| {
        spec.runtime_features = vec!["^free-space-tree".to_owned()];
        spec.mount_options = vec!["space_cache=v1".to_owned()];
    });
    add("no-cache", &|spec| {
        spec.runtime_features = vec!["^free-space-tree".to_owned()];
        spec.mount_options = vec!["nospace_cache".to_owned()];
    });
    add("oldest", &|spec| {
        let features = ["no-holes", "skinny-metadata", "extref"];
        spec.features = features.map(|feature| format!("^{feature}")).to_vec();
        spec.runtime_features = vec!["^free-space-tree".to_owned()];
        spec.mount_options = vec!["space_cache=v1".to_owned()];
        spec.nodesize = Some(4096);
    });
    add("quota", &|spec| spec.quota = Quota::Full);
    add("simple-quota", &|spec| spec.quota = Quota::Simple);
    add("label", &|spec| spec.label = Some("Schmetterling \u{1f98b}".to_owned()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_can_be_looked_up() {
        let all = matrix();
        let names: std::collections::BTreeSet<_> = all.iter().map(|preset| &preset.name).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(preset("raid10").unwrap().devices, 4);
        assert_eq!(preset("nothing"), None);
    }
}
