//! Random damage of the source's metadata never ends in a panic or a hang, and changes nothing
//! unless the conversion succeeds.
//!
//! `PAPILIO_CONVERT_DAMAGES` is the number of damaged images to try (300).

use super::fill::{bytes, flags};
use super::world::{NEEDS, World};
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

#[test]
fn random_damage_is_survived() {
    if require(NEEDS).is_none() {
        return;
    }
    let count = std::env::var("PAPILIO_CONVERT_DAMAGES").ok().and_then(|text| text.parse().ok());
    let count: u64 = count.unwrap_or(300);
    let shapes =
        ["-t ext4 -b 4096", "-t ext4 -b 4096 -O ^metadata_csum,^uninit_bg,inline_data", "-t ext2 -b 4096"];
    let mut outcomes = [0u64; 2];
    for (shape, arguments) in shapes.into_iter().enumerate() {
        let world = World::new(arguments, 80, files);
        let sound = MemoryDevice::from_image(&world.image).unwrap();
        let blocks = metadata_blocks(&sound);
        assert!(blocks.len() > 20, "{}", blocks.len());
        for seed in 0..count / shapes.len() as u64 {
            let mut random = fastrand::Rng::with_seed(seed * 8 + shape as u64);
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
                let value = [random.u8(..), 0, 0xff, bytes[at] ^ 1][random.usize(0..4)];
                memory.write_at(&[value], PhysicalAddress(block * 4096 + at as u64)).unwrap();
            }
            let before = memory.snapshot();
            let memory = Arc::new(memory);
            let device: Arc<dyn Device> = Arc::clone(&memory) as Arc<dyn Device>;
            let result = convert(&device, &ConvertOptions::new(), &mut |_| ());
            outcomes[usize::from(result.is_ok())] += 1;
            match result {
                Err(error) => {
                    assert!(!error.to_string().contains('\n'), "{error}");
                    assert!(
                        memory.same_content(&before),
                        "{arguments}, seed {seed}: {error}, but it changed"
                    );
                }
                Ok(_) => {
                    let options = CheckOptions::new().data_csum(true);
                    let report = check_devices(vec![device], &OpenOptions::new(), &options).unwrap();
                    assert!(report.is_clean(), "{arguments}, seed {seed}: {:?}", report.findings);
                }
            }
        }
    }
    assert!(outcomes[0] > count / 5 && outcomes[1] > 0, "{outcomes:?}");
}
