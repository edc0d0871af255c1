//! File systems of every preset that the kernel wrote have no findings.

use papilio::{CheckOptions, OpenOptions};
use papilio_oracle::{Need, Scratch, TreeSpec, matrix, require};

/// Presets that differ in structures that the check reads.
const SOME: [&str; 12] = [
    "default",
    "sha256",
    "zstd",
    "nodatasum",
    "raid1",
    "raid6",
    "raid10",
    "node-4k",
    "mixed",
    "oldest",
    "no-cache",
    "simple-quota",
];

/// With `PAPILIO_LONG=1` all presets, else some.
#[test]
fn file_systems_of_the_kernel_are_clean() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let long = std::env::var_os("PAPILIO_LONG").is_some_and(|value| value == "1");
    let mut dirty = Vec::new();
    for preset in matrix().into_iter().filter(|preset| long || SOME.contains(&preset.name.as_str())) {
        let scratch = Scratch::new(256 << 20).expect("a scratch folder");
        let images = preset.spec.make(&scratch).expect("mkfs");
        let mounted = images.mount().expect("mount");
        let tree = TreeSpec { files: 60, bytes: 4 << 20, seed: 3, subvolumes: true };
        tree.populate(mounted.path()).expect("populate");
        mounted.unmount().expect("unmount");
        let (first, others) = images.paths().split_first().expect("an image");
        let open = others.iter().fold(OpenOptions::new(), |open, path| open.device(path));
        let report = papilio::check(first, &open, &CheckOptions::new().data_csum(true)).expect("check");
        let statistics = &report.statistics;
        println!("{:<24} {statistics:?} {:?}", preset.name, report.notes);
        assert!(statistics.files > 500 && statistics.subvolumes > 5, "{}: {statistics:?}", preset.name);
        if !report.counts.is_empty() {
            dirty.push(format!("{}: {:?}", preset.name, report.counts));
            report.findings.iter().take(10).for_each(|finding| println!("    {finding}"));
        }
    }
    assert!(dirty.is_empty(), "{dirty:#?}");
}
