//! File systems of several shapes that the kernel fills with known files.

use papilio::device::{Device, MemoryDevice};
use papilio::format::items::chunk::ChunkItem;
use papilio::format::{Generation, ItemType, Key, PhysicalAddress, objectid};
use papilio::{FileSystem, OpenOptions, ScanOptions};
use papilio_oracle::{FileSystemSpec, Scratch, sys};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Files by their path from the top level.
pub type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// The most bytes of a file that are read. The files of a world are shorter.
pub const LARGEST: u64 = 64 << 20;

/// An image on a memory device, its files, and the places in use.
pub struct World {
    pub name: &'static str,
    pub device: MemoryDevice,
    pub files: Files,
    pub node_size: u64,
    /// The places of tree blocks, and of sectors of data, on the device.
    pub blocks: Vec<u64>,
    pub data: Vec<u64>,
}

/// A file system whose metadata has two copies, and whose data a lost device takes with it.
pub fn two_devices(data_profile: &str) -> FileSystemSpec {
    FileSystemSpec {
        devices: 2,
        device_size: 300 << 20,
        data_profile: Some(data_profile.to_owned()),
        metadata_profile: Some("raid1".to_owned()),
        ..FileSystemSpec::default()
    }
}

/// The shapes of random damage.
pub fn shapes() -> Vec<(&'static str, FileSystemSpec)> {
    let base = FileSystemSpec { device_size: 128 << 20, ..FileSystemSpec::default() };
    let single = Some("single".to_owned());
    let features = ["^no-holes", "^skinny-metadata", "^extref"].map(str::to_owned).to_vec();
    vec![
        ("dup", base.clone()),
        (
            "zstd-single",
            FileSystemSpec {
                metadata_profile: single.clone(),
                mount_options: vec!["compress-force=zstd".to_owned()],
                ..base.clone()
            },
        ),
        ("mixed", FileSystemSpec { mixed: true, nodesize: Some(4096), ..base.clone() }),
        (
            "oldest",
            FileSystemSpec {
                metadata_profile: single,
                nodesize: Some(4096),
                csum: Some("xxhash".to_owned()),
                features,
                runtime_features: vec!["^free-space-tree".to_owned()],
                ..base
            },
        ),
    ]
}

/// Returns the files of every shape.
fn content() -> Files {
    let mut random = fastrand::Rng::with_seed(17);
    let mut files = Files::new();
    for number in 0..240 {
        let length = [30, 900, 2500, 5000, 20_000, 70_000][number % 6] + random.usize(..900);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        if number % 2 == 0 {
            // One that compresses.
            bytes.iter_mut().enumerate().filter(|(at, _)| at % 8 > 0).for_each(|(_, byte)| *byte = b'x');
        }
        files.insert(format!("dir{}/sub{}/file{number}", number % 5, number % 3).into_bytes(), bytes);
    }
    files
}

/// Writes the files through a mount: a subvolume, snapshots and clones share data. Returns all.
fn fill(top: &Path) -> Files {
    let mut files = Files::new();
    let subvolume = top.join("home");
    sys::create_subvolume(&subvolume).unwrap();
    let put = |files: &mut Files, path: &[u8], content: &[u8]| {
        let place = top.join(OsStr::from_bytes(path));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
        files.insert(path.to_vec(), content.to_vec());
    };
    for (number, (path, content)) in content().iter().enumerate() {
        let path = if number % 2 == 0 { [b"home/", &path[..]].concat() } else { path.clone() };
        put(&mut files, &path, content);
    }
    sync(top);
    sys::create_snapshot(&subvolume, &top.join("snapshot"), true).unwrap();
    let shared: Vec<_> = files
        .iter()
        .filter_map(|(path, content)| {
            Some(([b"snapshot/", path.strip_prefix(b"home/")?].concat(), content.clone()))
        })
        .collect();
    files.extend(shared);
    let changed: Vec<_> = files.keys().filter(|path| path.starts_with(b"home/dir1")).cloned().collect();
    for path in changed {
        put(&mut files, &path, &[7; 9000]);
    }
    files
}

fn sync(path: &Path) {
    fs::File::open(path).unwrap().sync_all().unwrap();
}

impl World {
    /// Makes the shape `number`, or takes the image that an earlier run left in `folder`.
    pub fn make(number: usize, folder: Option<&Path>) -> Self {
        let (name, spec) = shapes().swap_remove(number);
        let kept = folder.map(|folder| folder.join(format!("{name}.img")));
        let scratch = Scratch::new(512 << 20).unwrap();
        let image = match &kept {
            Some(kept) if kept.exists() => kept.clone(),
            _ => {
                let images = spec.make(&scratch).unwrap();
                let mounted = images.mount().unwrap();
                fill(mounted.path());
                mounted.unmount().unwrap();
                let image = images.paths()[0].clone();
                if let Some(kept) = &kept {
                    MemoryDevice::from_image(&image).unwrap().write_image(kept).unwrap();
                }
                image
            }
        };
        let device = MemoryDevice::from_image(&image).unwrap();
        let fs = open(&device, &OpenOptions::new()).unwrap();
        let files = contents(&fs);
        assert!(files.len() > 300, "{name}: {} files", files.len());
        let report = fs.check(&papilio::CheckOptions::new().data_csum(true)).unwrap();
        assert!(report.is_clean(), "{name}: {:#?}", report.findings);
        let (blocks, data) = places(&device, &fs);
        let node_size = fs.superblock().raw.node_size.into();
        Self { name, device, files, node_size, blocks, data }
    }
}

/// Opens a snapshot of a device, which never changes.
pub fn open(device: &MemoryDevice, options: &OpenOptions) -> papilio::Result<FileSystem> {
    let device: Arc<dyn Device> = Arc::new(device.snapshot());
    FileSystem::from_devices(vec![device], options)
}

/// Returns every regular file that the walk from the top finds and that can be read.
pub fn contents(fs: &FileSystem) -> Files {
    // A file with a wrong size may be larger than the memory.
    let mut files = Files::new();
    let Ok(walk) = fs.walk("/") else { return files };
    for entry in walk.flatten() {
        if entry.inode.metadata().file_type() == papilio::FileKind::Regular
            && entry.inode.metadata().size() <= LARGEST
            && let Ok(content) = fs.read(OsStr::from_bytes(&entry.path))
        {
            let path = entry.path.strip_prefix(b"/").unwrap_or(&entry.path).to_vec();
            files.insert(path, content);
        }
    }
    files
}

/// Returns the places of all tree blocks in use and of the sectors of data in use.
fn places(device: &MemoryDevice, fs: &FileSystem) -> (Vec<u64>, Vec<u64>) {
    let mut used = BTreeSet::new();
    for root in fs.tree_roots().unwrap() {
        used.extend(fs.tree_blocks(&root).flatten().map(|block| block.address()));
    }
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.snapshot())];
    let scan = papilio::scan_devices(&devices, &ScanOptions::new()).unwrap();
    let blocks = scan.blocks.iter().filter(|block| used.contains(&block.address));
    let blocks = blocks.map(|block| block.offset.0).collect();
    let mut chunks = Vec::new();
    let all = || Key::MIN..=Key::MAX;
    fs.search_tree(objectid::CHUNK_TREE, all(), Generation(0), &mut |_, key, item| {
        if key.item_type == ItemType::CHUNK_ITEM {
            chunks.push((key.offset, ChunkItem::parse_prefix(item).unwrap().0));
        }
        true
    })
    .unwrap();
    let place = |address: u64| -> Option<u64> {
        let (start, chunk) =
            chunks.iter().find(|(start, chunk)| (*start..start + chunk.length).contains(&address))?;
        Some(chunk.stripes[0].offset.0 + (address - start))
    };
    let mut data = Vec::new();
    fs.search_tree(objectid::CSUM_TREE, all(), Generation(0), &mut |_, key, item| {
        let sums = item.len() / fs.superblock().checksum_type().size();
        let sectors = (0..sums as u64).filter_map(|at| place(key.offset + at * 4096));
        data.extend(sectors);
        true
    })
    .unwrap();
    (blocks, data)
}

/// Damage of one seed.
#[derive(Clone, Debug)]
pub struct Damage {
    pub what: &'static str,
    pub count: u64,
}

/// Breaks 1 to 100 bytes, sectors or blocks: half of them in tree blocks, nearly half in data, and
/// a few in superblocks.
pub fn break_some(world: &World, device: &MemoryDevice, seed: u64) -> Damage {
    let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (what, size) = [("bytes", 1), ("sectors", 4096), ("blocks", world.node_size)][random.usize(..3)];
    let count = random.u64(1..=100);
    for _ in 0..count {
        let place = match random.u32(..100) {
            0 => [64 << 10, 64 << 20][random.usize(..2)],
            1..50 => {
                let block = world.blocks[random.usize(..world.blocks.len())];
                block + if size == 1 { 0 } else { random.u64(..world.node_size) / size * size }
            }
            _ => world.data[random.usize(..world.data.len())],
        };
        let within = if size == 1 { random.u64(..4096) } else { 0 };
        let mut bytes = vec![0; size as usize];
        device.read_at(&mut bytes, PhysicalAddress(place + within)).unwrap();
        match random.u32(..3) {
            _ if size == 1 => bytes[0] ^= random.u8(1..),
            0 => bytes.fill(0),
            _ => random.fill(&mut bytes),
        }
        device.write_at(&bytes, PhysicalAddress(place + within)).unwrap();
    }
    Damage { what, count }
}
