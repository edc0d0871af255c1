//! Tests of block groups and free space on file systems of the kernel: for each block group the
//! kernel's free-space tree, as extents and as bitmaps, matches the gaps between its extents.

use crate::file_system::FileSystem;
use papilio_engine::btree::Tree;
use papilio_engine::options::OpenOptions;
use papilio_engine::space::load::{SpaceTrees, free_between_extents, load, read_free_space};
use papilio_engine::space::{LogicalRange, SpaceKind};
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use papilio_format::{ItemType, TreeId, objectid};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};

/// Writes files of a sector each and removes every second one. The kernel records that many gaps of
/// a small block group as bitmaps.
fn fragment(images: &ImageSet) {
    let mounted = images.mount().unwrap();
    let path = |number: u32| mounted.path().join(number.to_string());
    (0..600).for_each(|number| std::fs::write(path(number), [number as u8; 4096]).unwrap());
    mounted.sync().unwrap();
    (0..600).step_by(2).for_each(|number| std::fs::remove_file(path(number)).unwrap());
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
}

fn open(images: &ImageSet) -> FileSystem {
    let mut options = OpenOptions::new();
    for path in &images.paths()[1..] {
        options = options.device(path);
    }
    FileSystem::open_with(&images.paths()[0], &options).unwrap()
}

/// Counts the block groups whose free space is in bitmaps.
fn count_bitmaps(free_space: &Tree) -> usize {
    let infos = free_space.items().map(Result::unwrap);
    let infos = infos.filter(|item| item.key.item_type == ItemType::FREE_SPACE_INFO);
    let bitmaps = infos.map(|item| FreeSpaceInfo::parse(item.data()).unwrap().flags);
    bitmaps.filter(|flags| flags.contains(FreeSpaceFlags::USING_BITMAPS)).count()
}

/// Loads the space from each source, compares, and counts the block groups with bitmaps.
fn compare(fs: &FileSystem, devices: usize) -> usize {
    let mounted = &fs.info;
    let find = |id: TreeId| mounted.trees.find(id).unwrap().map(|open| open.tree.clone());
    let extent = find(objectid::EXTENT_TREE).unwrap();
    let block_group = find(objectid::BLOCK_GROUP_TREE);
    let free_space = find(objectid::FREE_SPACE_TREE);
    let (chunks, geometry) = (mounted.volume().chunk_map(), mounted.volume().geometry());
    let trees = SpaceTrees { extent: &extent, block_group: block_group.as_ref(), free_space: None };
    let from_extents = load(trees, &chunks, &geometry, devices).unwrap();
    assert_eq!(from_extents.bytes_used(), fs.superblock().raw.bytes_used);
    assert!(from_extents.available(SpaceKind::Data) > 0);
    assert_eq!(from_extents.chunk_flags(SpaceKind::Metadata), profile_of(fs));

    let Some(free_space) = &free_space else {
        assert!(!geometry.compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE));
        return 0;
    };
    let from_tree = SpaceTrees { free_space: Some(free_space), ..trees };
    let from_tree = load(from_tree, &chunks, &geometry, devices).unwrap();
    for kind in [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System] {
        assert_eq!(from_tree.totals(kind), from_extents.totals(kind));
    }
    for chunk in chunks.iter() {
        let group = LogicalRange { start: chunk.start(), length: chunk.length() };
        let free = read_free_space(free_space, group, &geometry).unwrap();
        assert_eq!(free, free_between_extents(&extent, group, &geometry).unwrap(), "{group:?}");
        // An allocation must be in space that the kernel calls free.
        let allocated = from_tree.allocate(SpaceKind::Data, 4096, 1 << 20).unwrap();
        let holder = from_tree.block_group_of(allocated.start).unwrap().range;
        let free = read_free_space(free_space, holder, &geometry).unwrap();
        assert!(free.holder(&(allocated.start.0..allocated.end().0)).is_some(), "{allocated:?} is in use");
    }
    count_bitmaps(free_space)
}

/// Returns the flags of a metadata chunk of the file system.
fn profile_of(fs: &FileSystem) -> papilio_format::items::block_group::BlockGroupFlags {
    let metadata = papilio_format::items::block_group::BlockGroupFlags::METADATA;
    let chunks = fs.info.volume().chunk_map();
    chunks.iter().find(|chunk| chunk.flags().contains(metadata)).unwrap().flags()
}

#[test]
fn free_space_matches_the_kernels_tree() {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let specs = [
        FileSystemSpec { device_size: 128 << 20, ..FileSystemSpec::default() },
        FileSystemSpec { device_size: 100 << 20, mixed: true, ..FileSystemSpec::default() },
        FileSystemSpec { device_size: 128 << 20, nodesize: Some(4096), ..FileSystemSpec::default() },
        FileSystemSpec {
            device_size: 128 << 20,
            runtime_features: vec!["^free-space-tree".to_owned()],
            ..FileSystemSpec::default()
        },
        FileSystemSpec {
            device_size: 256 << 20,
            devices: 2,
            metadata_profile: Some("raid1".into()),
            data_profile: Some("raid0".into()),
            ..FileSystemSpec::default()
        },
    ];
    let mut bitmaps = 0;
    for spec in specs {
        let images = spec.make(&scratch).unwrap();
        fragment(&images);
        bitmaps += compare(&open(&images), spec.devices);
        images.paths().iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
    assert!(bitmaps > 0, "the kernel wrote no bitmaps to compare");
}
