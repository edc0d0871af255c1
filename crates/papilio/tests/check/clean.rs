//! File systems that the kernel wrote have no finding, whatever their shape.

use papilio::{CheckOptions, OpenOptions};
use papilio_oracle::{Need, Scratch, TreeSpec, matrix, require};

/// Those that differ in what a check looks at.
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

/// With `PAPILIO_LONG=1` all shapes, else some.
#[test]
fn what_the_kernel_wrote_is_clean() {
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
        let report = papilio::check(first, &open, &CheckOptions::new().data_csum(true)).expect("devices");
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
