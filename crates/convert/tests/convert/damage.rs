//! Random damage of the source's metadata never ends in a panic or a hang, and changes nothing
//! unless the conversion succeeds.
//!
//! `PAPILIO_CONVERT_DAMAGES` is the number of damaged images to try (100).

use super::fill::{bytes, flags};
use super::hostile::Sources;
use super::world::{Kind, NEEDS, World, XFS_NEEDS, run};
use papilio_convert::{ConvertOptions, convert};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_engine::options::OpenOptions;
use papilio_fs::check_devices;
use papilio_oracle::require;
use papilio_progs::check::CheckOptions;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

fn files(root: &Path) {
    for folder in 0..5 {
        let path = root.join(format!("folder {folder}"));
        fs::create_dir(&path).unwrap();
        for at in 0..60 {
            fs::write(path.join(format!("file {at}")), bytes(at, at as usize * 300)).unwrap();
        }
        symlink("t".repeat(100), path.join("long link")).unwrap();
        xattr::set(&path, "user.large", &bytes(3, 2000)).unwrap();
    }
    fs::write(root.join("large"), bytes(9, 10 << 20)).unwrap();
    flags(root);
}

/// Returns the blocks of metadata: those that are no data of files.
fn metadata_blocks(image: &MemoryDevice) -> Vec<u64> {
    let mut block = vec![0; 4096];
    let mut found = Vec::new();
    for number in 0..image.size() / 4096 {
        image.read_at(&mut block, PhysicalAddress(number * 4096)).unwrap();
        // Data of these files is random: its bytes have few zeros.
        let zeros = block.iter().filter(|byte| **byte == 0).count();
        if (200..4096).contains(&zeros) {
            found.push(number);
        }
    }
    found
}

/// Returns the number of damaged images to try.
fn count() -> u64 {
    let count = std::env::var("PAPILIO_CONVERT_DAMAGES").ok().and_then(|text| text.parse().ok());
    count.unwrap_or(100)
}

#[test]
fn random_damage_is_survived() {
    if require(NEEDS).is_none() {
        return;
    }
    let shapes =
        ["-t ext4 -b 4096", "-t ext4 -b 4096 -O ^metadata_csum,^uninit_bg,inline_data", "-t ext2 -b 4096"];
    let mut outcomes = [0u64; 2];
    for (shape, arguments) in shapes.into_iter().enumerate() {
        let world = World::new(arguments, 80, files);
        damage_all(&world, count() / shapes.len() as u64, shape as u64, &mut |_| (), &mut outcomes);
    }
    assert!(outcomes[0] > count() / 5 && outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn random_damage_of_xfs_is_survived() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let fill = |root: &Path| {
        files(root);
        super::xfs_fill::reflinks(root);
        super::xfs_fill::many_names(root, 2000);
        super::xfs_fill::large_attributes(root);
    };
    let mut outcomes = [0u64; 2];
    let world = World::xfs("-l size=20m -m rmapbt=1", 110, fill);
    damage_all(&world, count() / 6, 0, &mut |_| (), &mut outcomes);
    // With checksums that match again, every other check has its turn.
    damage_all(&world, count() / 3, 1, &mut |block| super::hostile::reseal(block, 1), &mut outcomes);
    let source = world.scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let description = world.scratch.path().join("prototype");
    fs::write(&description, super::xfs_fill::prototype(&source)).unwrap();
    let image = world.scratch.image("four", 110 << 20).unwrap();
    let [from, to] = [&description, &image].map(|path| path.to_str().unwrap());
    run("mkfs.xfs", &["-q", "-m", "crc=0", "-n", "ftype=1", "-p", from, to]);
    let world = World::of(Kind::Xfs, world.scratch.clone(), image);
    damage_all(&world, count() / 3, 2, &mut |_| (), &mut outcomes);
    assert!(outcomes[0] > count() / 5 && outcomes[1] > 0, "{outcomes:?}");
}

/// Damages copies of an image, and converts each. Counts refusals and conversions.
fn damage_all(
    world: &World,
    count: u64,
    shape: u64,
    reseal: &mut dyn FnMut(&mut [u8]),
    outcomes: &mut [u64; 2],
) {
    let sound = MemoryDevice::from_image(&world.image).unwrap();
    let blocks = metadata_blocks(&sound);
    assert!(blocks.len() > 20, "{}", blocks.len());
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed * 8 + shape);
        let memory = sound.snapshot();
        for _ in 0..random.u32(1..4) {
            let block = match random.u8(0..4) {
                0 => 0,
                1 => 1,
                _ => blocks[random.usize(0..blocks.len())],
            };
            let mut bytes = vec![0; 4096];
            memory.read_at(&mut bytes, PhysicalAddress(block * 4096)).unwrap();
            // Bytes in use are more interesting than zeros behind them.
            let places: Vec<_> = (0..4096).filter(|at| bytes[*at] != 0).collect();
            let at = if places.is_empty() { 7 } else { places[random.usize(0..places.len())] };
            bytes[at] = [random.u8(..), 0, 0xff, bytes[at] ^ 1][random.usize(0..4)];
            reseal(&mut bytes);
            memory.write_at(&bytes, PhysicalAddress(block * 4096)).unwrap();
        }
        let before = memory.snapshot();
        let memory = Arc::new(memory);
        let device: Arc<dyn Device> = Arc::clone(&memory) as Arc<dyn Device>;
        let result = convert(&device, &ConvertOptions::new().node_size(65536), &mut |_| ());
        outcomes[usize::from(result.is_ok())] += 1;
        match result {
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                assert!(memory.same_content(&before), "shape {shape}, seed {seed}: {error}, but it changed");
            }
            Ok(_) => {
                let options = CheckOptions::new().data_csum(true);
                let report = check_devices(vec![device], &OpenOptions::new(), &options).unwrap();
                assert!(report.is_clean(), "shape {shape}, seed {seed}: {:?}", report.findings);
            }
        }
    }
}

/// Runs the fuzz target `convert_source` with some seeds.
#[test]
fn a_hostile_source_is_only_read() {
    if require(NEEDS).is_none() || require(XFS_NEEDS).is_none() {
        return;
    }
    let mut devices: Vec<_> = ["-t ext4 -O ^metadata_csum,^uninit_bg,inline_data", "-t ext4", "-t ext2"]
        .into_iter()
        .map(|shape| World::new(&format!("{shape} -b 4096"), 80, files))
        .map(|world| MemoryDevice::from_image(&world.image).unwrap())
        .collect();
    let world = World::xfs("-l size=20m -m rmapbt=1", 110, |root| {
        files(root);
        super::xfs_fill::reflinks(root);
        super::xfs_fill::large_attributes(root);
    });
    devices.push(MemoryDevice::from_image(&world.image).unwrap());
    let journal = super::journal::cut_off("-t ext4 -b 4096 -O ^metadata_csum", files, |root| {
        fs::remove_dir_all(root.join("folder 2")).unwrap();
    });
    devices.push(MemoryDevice::from_image(&journal.image).unwrap());
    let kinds = devices.len() as u64;
    let sources = Sources::new(devices);
    let converted = (0..count() * 3).filter(|seed| {
        let mut random = fastrand::Rng::with_seed(*seed);
        let changes = random.usize(1..6) * 8;
        let mut input = vec![(*seed % (kinds * 2)) as u8];
        input.extend(std::iter::repeat_with(|| random.u8(..)).take(changes));
        sources.prepare(&input)
    });
    let converted = converted.count() as u64;
    assert!((1..count() * 3).contains(&converted), "{converted}");
}
