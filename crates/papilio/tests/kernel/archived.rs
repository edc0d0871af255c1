//! Archives of file systems that the kernel wrote: read as they are, restored to devices of the
//! same size and to smaller ones, and mounted by the kernel. Every path, mode, owner, time,
//! attribute and byte is compared.
//!
//! `PAPILIO_ARCHIVE_SHAPES` names the presets of a longer run.

use crate::bridge::Papilio;
use crate::images::{assert_clean_for_both, open};
use crate::matrix::tree_spec;
use papilio::archive::{
    ArchiveChain, ArchiveOptions, ArchiveReader, ArchiveSource, restore_archive, restore_sizes,
    verify_archive,
};
use papilio::device::{Access, Device, DeviceOptions};
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{CheckOptions, FileSystem, OpenOptions};
use papilio_oracle::{
    CompareOptions, HostTree, ImageSet, Need, Scratch, TreeSpec, compare, kernel_has, require,
};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The presets of the short run.
const DEFAULT_SHAPES: &str = "nodatacow,raid6";

fn chain(path: &Path) -> Arc<ArchiveChain> {
    let file: Arc<dyn Device> = Arc::new(DeviceOptions::new(Access::ReadOnly).open(path).unwrap());
    Arc::new(ArchiveChain::open_path(path, file, &[]).unwrap())
}

fn source(path: &Path) -> ArchiveSource {
    let input: Box<dyn Read + Send> = Box::new(BufReader::new(File::open(path).unwrap()));
    ArchiveReader::new(input, &path.display().to_string()).unwrap()
}

/// Archives the images, and returns the bytes of the archive.
fn archive(images: &ImageSet, parent: Option<&Path>, to: &Path) -> u64 {
    let fs = open(images.paths(), &OpenOptions::new().replay_log(false)).unwrap();
    let mut out = BufWriter::new(File::create(to).unwrap());
    let created = fs.archive(parent.map(chain), &mut out, &ArchiveOptions::new(), |_, _| {}).unwrap();
    drop(out);
    assert_eq!(created.bytes, fs::metadata(to).unwrap().len());
    assert_eq!((created.damaged_bytes, created.unreadable_bytes), (0, 0));
    let summary = verify_archive(&mut source(to), 0, &mut |_| {}).unwrap();
    assert_eq!((summary.size, summary.data_bytes), (created.bytes, created.data_bytes));
    created.bytes
}

/// Compares an archive with the file system that the kernel mounts from images, and checks it.
fn compare_archive(name: &str, path: &Path, images: &ImageSet) {
    let mounted = images.mount_read_only().unwrap();
    let fs = FileSystem::open(path).unwrap();
    let tree = HostTree::new(mounted.path());
    let report = compare(&tree, &Papilio(fs.clone()), &CompareOptions::SAME_IMAGE);
    assert!(report.is_equal() && report.entries > 100, "{name}: {report}");
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{name}: {:#?}", report.findings);
}

/// Restores a chain to images that have `percent` of the size that they need.
fn restored(scratch: &Scratch, archives: &[&Path], percent: u64) -> ImageSet {
    let mut sources: Vec<_> = archives.iter().map(|path| source(path)).collect();
    let sizes = restore_sizes(sources.last().unwrap());
    let mut paths = Vec::new();
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for size in sizes {
        let path = scratch.unique("restored");
        File::create(&path).unwrap().set_len(size * percent / 100 / 4096 * 4096).unwrap();
        devices.push(Arc::new(DeviceOptions::new(Access::ReadWrite).open(&path).unwrap()));
        paths.push(path);
    }
    let done = restore_archive(&mut sources, &devices, scratch.path(), |_| {}).unwrap();
    assert!(done.bytes > 0 && done.unreadable_bytes == 0);
    ImageSet::open(scratch, paths)
}

/// Returns the UUIDs of a file system and its devices.
fn identity(images: &[PathBuf]) -> Vec<String> {
    let of = |path: &PathBuf| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        let place = superblock_offset(0);
        File::open(path).unwrap().read_exact_at(&mut bytes, place.0).unwrap();
        let raw = Superblock::parse(&bytes, place).unwrap().raw;
        format!("{} {} {}", raw.fsid, raw.dev_item.uuid, raw.dev_item.devid)
    };
    images.iter().map(of).collect()
}

fn change(root: &Path) {
    fs::remove_dir_all(root.join("links")).unwrap();
    fs::write(root.join("new file"), vec![7; 300_000]).unwrap();
    // Data without checksums is overwritten in place: no extent of it is newer.
    let file = File::options().write(true).open(root.join("in place")).unwrap();
    file.write_all_at(b"other bytes", 1_000_000).unwrap();
}

fn shape(name: &str) {
    let tree = TreeSpec { bytes: tree_spec().bytes / 2, ..tree_spec() };
    let spec = papilio_oracle::preset(name).unwrap_or_else(|| panic!("no preset '{name}'"));
    let scratch = Scratch::new(tree.bytes * 12 + (64 << 20)).unwrap();
    let images = spec.sized_for(tree.bytes).make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    tree.populate(mounted.path()).unwrap();
    fs::write(mounted.path().join("in place"), vec![1; 2_000_000]).unwrap();
    mounted.unmount().unwrap();
    let start = Instant::now();
    let (full, next) = (scratch.path().join("full.pbk"), scratch.path().join("next.pbk"));
    let full_bytes = archive(&images, None, &full);
    compare_archive(name, &full, &images);
    let mounted = images.mount().unwrap();
    change(mounted.path());
    mounted.unmount().unwrap();
    let next_bytes = archive(&images, Some(&full), &next);
    assert!(next_bytes < full_bytes / 2, "{name}: {next_bytes} of {full_bytes}");
    compare_archive(name, &next, &images);
    for percent in [80, 120] {
        let restored = restored(&scratch, &[&full, &next], percent);
        assert_eq!(identity(restored.paths()), identity(images.paths()), "{name}");
        let mounted = restored.mount_read_only().unwrap();
        let tree = HostTree::new(mounted.path());
        let report = compare(&tree, &Papilio(FileSystem::open(&next).unwrap()), &CompareOptions::SAME_IMAGE);
        assert!(report.is_equal(), "{name} at {percent} %: {report}");
        mounted.unmount().unwrap();
        if images.checkable() {
            assert_clean_for_both(&restored, name);
        }
        restored.paths().iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    let seconds = start.elapsed().as_secs_f32();
    println!("{name:20} {full_bytes} bytes, then {next_bytes}; archived and restored in {seconds:.1} s");
}

#[test]
fn archives_of_every_shape_are_read_and_restored() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let wanted = std::env::var("PAPILIO_ARCHIVE_SHAPES").unwrap_or_else(|_| DEFAULT_SHAPES.to_owned());
    wanted.split(',').filter(|name| !name.is_empty() && kernel_has(name)).for_each(shape);
}
