//! Seeded mutations of real file systems: whatever the bytes, the result is an answer or an error.

use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{ChecksumType, ItemType, objectid};
use papilio_simulator::{BaseImage, exercise, exercise_changes, mutate, small_images};
use std::fmt::Display;
use std::panic::AssertUnwindSafe;

const IMAGES: [&[u8]; 2] = [
    include_bytes!("../../../../tests/fixtures/fuzz-default.img.zst"),
    include_bytes!("../../../../tests/fixtures/fuzz-mixed.img.zst"),
];

/// A file system with a log that a mount replays.
const LOG: &[u8] = include_bytes!("../../../../tests/fixtures/fsync-log.img.zst");

/// Maximum processor seconds per run: two orders of magnitude above what any run needs.
const CPU_LIMIT: f64 = 20.0;

/// Returns this thread's processor time in seconds, which does not depend on other load.
fn cpu_time() -> f64 {
    papilio_device::thread_cpu_time().as_secs_f64()
}

/// Runs the seed's work, which must neither panic nor take longer than [`CPU_LIMIT`]. The seed may
/// come with what else repeats the run.
fn bounded<T>(seed: impl Display, run: impl FnOnce() -> T) -> T {
    let start = cpu_time();
    let caught = std::panic::catch_unwind(AssertUnwindSafe(run));
    let result = caught.unwrap_or_else(|_| panic!("seed {seed} panicked"));
    let took = cpu_time() - start;
    assert!(took < CPU_LIMIT, "seed {seed} took {took} s of processor time");
    result
}

/// A random number generator good enough for choosing bytes (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn unchanged_images_are_clean() {
    for image in IMAGES {
        let base = BaseImage::load(image);
        let summary = exercise(mutate(&base, &[]));
        assert!(summary.mounted, "{summary:?}");
        assert_eq!((summary.errors, summary.findings), (0, 0), "{summary:?}");
        assert!(summary.entries > 60 && summary.bytes > 100_000, "{summary:?}");
    }
}

/// A key of a leaf that says where an extent or free space is.
struct PlaceKey {
    /// Where the leaf is on the device.
    leaf: PhysicalAddress,
    /// Where in the leaf the key's object id is.
    at: usize,
}

/// Returns the keys of the extent tree and of the free space tree that name extents.
fn place_keys(device: &MemoryDevice) -> Vec<PlaceKey> {
    let mut keys = Vec::new();
    for leaf in (0..device.size()).step_by(4096).map(PhysicalAddress) {
        let mut header = [0; NodeHeader::SIZE];
        device.read_at(&mut header, leaf).unwrap();
        let Ok(header) = NodeHeader::parse(&header) else { continue };
        let trees = [objectid::EXTENT_TREE, objectid::FREE_SPACE_TREE];
        // Data of files could pass for a header, which takes no more than this.
        if header.level > 0 || !trees.contains(&header.owner) || header.item_count > 500 {
            continue;
        }
        for slot in 0..header.item_count as usize {
            let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
            let mut kind = [0];
            device.read_at(&mut kind, PhysicalAddress(leaf.0 + at as u64 + 8)).unwrap();
            let kinds = [ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM, ItemType::FREE_SPACE_EXTENT];
            if kinds.iter().any(|wanted| wanted.0 == kind[0]) {
                keys.push(PlaceKey { leaf, at });
            }
        }
    }
    keys
}

/// Adds to a number of a leaf with the default size and checksum.
fn add_to(device: &MemoryDevice, leaf: PhysicalAddress, at: usize, delta: i64) {
    let mut bytes = vec![0; 16384];
    device.read_at(&mut bytes, leaf).unwrap();
    let number = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    bytes[at..at + 8].copy_from_slice(&number.wrapping_add_signed(delta).to_le_bytes());
    let sum = ChecksumType::Crc32c.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(sum.padded());
    device.write_at(&bytes, leaf).unwrap();
}

/// Extents and free space that overlap give errors, not panics: each place is moved and made longer
/// or shorter by a few sectors.
#[test]
fn overlapping_extents_and_free_space_give_errors() {
    let small = small_images().unwrap();
    let (mut mounted, mut errors) = (0, 0);
    for (image, base) in [&small[0], &small[3]].into_iter().enumerate() {
        let keys = place_keys(&base.copy());
        assert!(keys.len() > 20, "{} places", keys.len());
        for (number, key) in keys.iter().enumerate() {
            for (field, sectors) in [(0, -1), (0, -4), (0, 1), (0, 4), (9, -1), (9, 1), (9, 4)] {
                let seed = setting("PAPILIO_MUTATIONS_FROM", 0) + number as u64;
                let device = base.copy();
                add_to(&device, key.leaf, key.at + field, sectors * 4096);
                let steps = Random(seed).bytes(24);
                let place = format_args!("{seed} (image {image}, key {number}, {sectors} at {field})");
                let summary = bounded(place, || exercise_changes(device, &steps));
                mounted += usize::from(summary.mounted);
                errors += summary.errors;
            }
        }
    }
    println!("{mounted} mounted, {errors} steps failed");
    assert!(mounted > 50 && errors > 50, "{mounted} mounted, {errors} steps failed");
}

/// Returns the number that an environment variable holds.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Returns the images of the kernel's, and the small ones.
fn all_images() -> Vec<BaseImage> {
    let mut bases: Vec<_> = [IMAGES[0], IMAGES[1], LOG].map(BaseImage::load).into();
    bases.extend(small_images().expect("a device in memory"));
    bases
}

#[test]
fn unchanged_small_images_are_clean() {
    for (number, base) in small_images().expect("a device in memory").iter().enumerate() {
        let summary = exercise(base.copy());
        assert!(summary.mounted && summary.entries > 12 && summary.bytes > 50_000, "{number}: {summary:?}");
        assert_eq!((summary.errors, summary.findings), (0, 0), "{number}: {summary:?}");
    }
}

#[test]
fn unchanged_images_take_every_change() {
    for base in all_images() {
        for seed in 0..20 {
            let plan = Random(seed).bytes(24);
            let summary = exercise_changes(base.copy(), &plan);
            assert!(summary.mounted && summary.mounts_again && summary.done > 8, "{seed}: {summary:?}");
        }
    }
}

#[test]
fn changes_of_mutated_images_give_errors_not_panics() {
    let (first, runs) = (setting("PAPILIO_MUTATIONS_FROM", 0), setting("PAPILIO_CHANGED_MUTATIONS", 150));
    let bases = all_images();
    let (mut mounted, mut errors, mut again) = (0, 0, 0);
    for seed in first..first + runs {
        let mut random = Random(seed);
        let changes = 1 + (random.next() % 4) as usize;
        let (plan, steps) = (random.bytes(changes * 16), random.bytes(24));
        let base = &bases[seed as usize % bases.len()];
        let summary = bounded(seed, || exercise_changes(mutate(base, &plan), &steps));
        mounted += u64::from(summary.mounted);
        errors += summary.errors;
        again += u64::from(summary.mounts_again);
    }
    println!("{runs} images: {mounted} mounted, {errors} steps failed, {again} results mount");
    assert!(errors > 0 || runs < 100, "no mutation was detected");
}

#[test]
fn mutated_bytes_give_errors_not_panics() {
    let (first, runs) = (setting("PAPILIO_MUTATIONS_FROM", 0), setting("PAPILIO_MUTATIONS", 150));
    let bases = IMAGES.map(BaseImage::load);
    let mut seen_errors = 0;
    for seed in first..first + runs {
        let mut random = Random(seed);
        let changes = 1 + (random.next() % 6) as usize;
        let plan = random.bytes(changes * 16);
        let base = &bases[(seed % 2) as usize];
        let summary = bounded(seed, || exercise(mutate(base, &plan)));
        seen_errors += usize::from(summary.errors > 0);
    }
    // Mutations also hit superseded blocks, which nothing reads; others must be detected.
    assert!(seen_errors > 0 || runs < 100, "no mutation was detected");
}

/// Inputs of the fuzz target `mount_change` that made writers panic: an empty extent, inline data
/// behind the start of a file, a tree that seems to take almost 2^64 bytes, and a block in use
/// whose space is free.
///
/// The last two broke small images, whose blocks move when the library writes them in another
/// order. So the broken images themselves are kept.
#[test]
fn inputs_that_the_fuzzer_found_give_errors() {
    const STEPS: usize = 12;
    let mut cases = Vec::new();
    let inputs: [&[u8]; 2] = [
        include_bytes!("../../../../tests/fixtures/mount-change/empty-extent.bin"),
        include_bytes!("../../../../tests/fixtures/mount-change/taken-twice.bin"),
    ];
    let kernels = [IMAGES[0], IMAGES[1], LOG].map(BaseImage::load);
    for input in inputs {
        let (choice, rest) = input.split_first().unwrap();
        assert_eq!(choice % 16, 0, "a change of an image of the kernel");
        let (steps, plan) = rest.split_at(STEPS);
        cases.push((mutate(&kernels[usize::from(choice / 16) % 3], plan), steps));
    }
    let images: [(&[u8], &[u8]); 2] = [
        (
            include_bytes!("../../../../tests/fixtures/mount-change/inline-behind.img.zst"),
            include_bytes!("../../../../tests/fixtures/mount-change/inline-behind.steps"),
        ),
        (
            include_bytes!("../../../../tests/fixtures/mount-change/bytes-used.img.zst"),
            include_bytes!("../../../../tests/fixtures/mount-change/bytes-used.steps"),
        ),
    ];
    cases.extend(images.map(|(image, steps)| (BaseImage::load(image).copy(), steps)));
    for (device, steps) in cases {
        let summary = exercise_changes(device, steps);
        assert!(summary.mounted && summary.mounts_again, "{summary:?}");
    }
}
