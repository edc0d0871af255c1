//! The sizes that `statfs` shows are the kernel's, for every profile on equal and unequal devices.
//!
//! `PAPILIO_STATFS_LAYOUTS` is the number of layouts to try (40).

use papilio::format::items::chunk::RaidProfile;
use papilio::{FileSystem, MkfsOptions, OpenOptions, mkfs_many};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::path::PathBuf;

/// By how much the reserves of the two may differ: the kernel's depends on its state in memory.
const TOLERANCE: u64 = 4 << 20;

struct Layout {
    data: RaidProfile,
    metadata: RaidProfile,
    sizes: Vec<u64>,
    /// Bytes of files.
    filled: u64,
}

impl Layout {
    fn of_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let data = RaidProfile::ALL[seed as usize % RaidProfile::ALL.len()];
        let metadata = [RaidProfile::Dup, RaidProfile::Raid1, data][random.usize(..3)];
        let least = least_devices(data).max(least_devices(metadata));
        let most = if data == RaidProfile::Dup || metadata == RaidProfile::Dup { 3 } else { 6 };
        let count = random.usize(least..=least.max(most));
        let equal = random.bool();
        let first = random.u64(260..900);
        let sizes = (0..count).map(|_| if equal { first } else { random.u64(260..900) } << 20).collect();
        Self { data, metadata, sizes, filled: random.u64(..40) << 20 }
    }
}

/// Devices for chunks of two stripes at least, or of two data stripes with parity.
fn least_devices(profile: RaidProfile) -> usize {
    match profile {
        RaidProfile::Single | RaidProfile::Dup => 1,
        RaidProfile::Raid0 | RaidProfile::Raid1 => 2,
        RaidProfile::Raid1c3 | RaidProfile::Raid5 => 3,
        RaidProfile::Raid1c4 | RaidProfile::Raid10 | RaidProfile::Raid6 => 4,
    }
}

fn images(scratch: &Scratch, layout: &Layout) -> Vec<PathBuf> {
    let names = layout.sizes.iter().enumerate();
    let paths: Vec<_> =
        names.map(|(at, size)| scratch.image(&format!("sizes-{at}"), *size).unwrap()).collect();
    let options = MkfsOptions::new().data_profile(layout.data).metadata_profile(layout.metadata);
    mkfs_many(&paths, &options.force(true)).unwrap();
    paths
}

fn open(paths: &[PathBuf]) -> FileSystem {
    let options = paths[1..].iter().fold(OpenOptions::new(), |options, path| options.device(path));
    FileSystem::open_with(&paths[0], &options).unwrap()
}

#[test]
fn sizes_are_those_of_the_kernel() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let layouts = std::env::var("PAPILIO_STATFS_LAYOUTS").ok().and_then(|text| text.parse().ok());
    for seed in 0..layouts.unwrap_or(40) {
        let scratch = Scratch::new(1 << 30).unwrap();
        let layout = Layout::of_seed(seed);
        let paths = images(&scratch, &layout);
        let set = ImageSet::open(&scratch, paths.clone());
        let mounted = set.mount().unwrap();
        std::fs::write(mounted.path().join("file"), vec![7; layout.filled as usize]).unwrap();
        mounted.sync().unwrap();
        let kernel = rustix::fs::statvfs(mounted.path()).unwrap();
        mounted.unmount().unwrap();
        let ours = open(&paths).usage().unwrap().statfs();
        let Layout { data, metadata, sizes, filled } = &layout;
        let what = || format!("seed {seed}: {data} {metadata} {sizes:?}, {filled} bytes of files");
        for (name, ours, theirs) in [
            ("total", ours.total, kernel.f_blocks),
            ("free", ours.free, kernel.f_bfree),
            ("available", ours.available, kernel.f_bavail),
        ] {
            let theirs = theirs * kernel.f_frsize;
            assert!(ours.abs_diff(theirs) <= TOLERANCE, "{}: {name} {ours}, kernel {theirs}", what());
        }
    }
}
