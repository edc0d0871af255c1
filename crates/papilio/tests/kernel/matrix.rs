//! The kernel makes, fills and unmounts a file system of each preset; then Papilio and the kernel
//! read it.

use crate::bridge::Papilio;
use crate::images::open;
use papilio::{CheckOptions, OpenOptions};
use papilio_oracle::{
    CompareOptions, HostTree, ImageSet, Need, Report, Scratch, TreeSpec, compare, kernel_has, require,
};
use std::path::PathBuf;
use std::time::Instant;

/// The presets of the short run: every feature once, seconds each.
const DEFAULT_PRESETS: &str = "default,sha256,blake2,xxhash,zlib,lzo,zstd,nodatasum,no-inline,dup,node-4k,\
                               node-64k,mixed,without-no-holes,without-extref,v1-cache,oldest,quota,simple-quota";

/// Returns how much to write, which environment variables can raise.
pub fn tree_spec() -> TreeSpec {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    };
    TreeSpec {
        files: number("PAPILIO_ORACLE_FILES", 200),
        bytes: number("PAPILIO_ORACLE_BYTES", 12 << 20),
        ..TreeSpec::default()
    }
}

/// Compares everything that Papilio and a kernel mount show.
pub fn compare_with_kernel(images: &ImageSet) -> Report {
    let mounted = images.mount_read_only().expect("the kernel mounts the images");
    let fs = open(images.paths(), &OpenOptions::new()).expect("Papilio opens the images");
    compare(&HostTree::new(mounted.path()), &Papilio(fs), &CompareOptions::SAME_IMAGE)
}

/// Asserts that Papilio's check, data included, has no findings.
pub fn assert_check_clean(name: &str, images: &[PathBuf]) {
    let start = Instant::now();
    let fs = open(images, &OpenOptions::new()).expect("Papilio opens the images");
    let report = fs.check(&CheckOptions::new().data_csum(true)).expect("check");
    println!(
        "{name:20} checked {} blocks, {} data extents, {} bytes of data in {:.1} s: {} findings",
        report.statistics.blocks,
        report.statistics.data_extents,
        report.statistics.data_bytes_read,
        start.elapsed().as_secs_f32(),
        report.findings.len()
    );
    let shown: Vec<_> = report.findings.iter().take(20).map(ToString::to_string).collect();
    assert!(report.is_clean(), "{name}: {shown:#?}");
    assert!(report.statistics.files > 100 && report.statistics.data_bytes_read > 0, "{name}: {report:?}");
}

#[test]
fn papilio_and_the_kernel_read_the_same_from_every_preset() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let wanted = std::env::var("PAPILIO_ORACLE_PRESETS").unwrap_or_else(|_| DEFAULT_PRESETS.to_owned());
    let tree = tree_spec();
    for name in wanted.split(',').filter(|name| !name.is_empty() && kernel_has(name)) {
        let spec = papilio_oracle::preset(name).unwrap_or_else(|| panic!("no preset '{name}'"));
        let scratch = Scratch::new(tree.bytes * 2 + (64 << 20)).unwrap();
        let images = spec.sized_for(tree.bytes).make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let start = Instant::now();
        let written = tree.populate(mounted.path()).unwrap();
        mounted.unmount().unwrap();
        let populated = start.elapsed();
        let start = Instant::now();
        let report = compare_with_kernel(&images);
        println!(
            "{name:20} {} entries, {} bytes compared, {} differences; written in {:.1} s, compared in {:.1} s",
            report.entries,
            report.bytes,
            report.total,
            populated.as_secs_f32(),
            start.elapsed().as_secs_f32()
        );
        assert!(report.is_equal(), "{name}: {report}");
        assert!(report.entries >= written.entries, "{name}: {report}");
        assert_check_clean(name, images.paths());
    }
}
