//! The numbers of `df`: for file systems of several devices, profiles and fill levels, our mount
//! shows what the kernel's mount shows.
//!
//! `PAPILIO_LAYOUTS` sets the number of layouts, `PAPILIO_SEED` the first seed.

use crate::world::{World, papilio, run, unmount_kernel};
use papilio_oracle::Need;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Profiles with the fewest devices that they take.
const PROFILES: [(&str, usize); 9] = [
    ("single", 1),
    ("dup", 1),
    ("raid0", 2),
    ("raid1", 2),
    ("raid1c3", 3),
    ("raid1c4", 4),
    ("raid10", 4),
    ("raid5", 3),
    ("raid6", 4),
];
const METADATA: [&str; 3] = ["dup", "raid1", "raid1"];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Small random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Total, free and available bytes of the file system at a path.
fn sizes(path: &Path) -> [u64; 3] {
    let sizes = rustix::fs::statvfs(path).unwrap();
    [sizes.f_blocks, sizes.f_bfree, sizes.f_bavail].map(|blocks| blocks * sizes.f_frsize)
}

#[test]
fn sizes_are_the_kernels() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("mkfs.btrfs"), Need::Command("losetup")]];
    let first = setting("PAPILIO_SEED", 1);
    for seed in first..first + setting("PAPILIO_LAYOUTS", 8) {
        let Some(world) = World::new(&needs.concat()) else { return };
        let mut random = Random(seed);
        let (data, least) = PROFILES[random.below(9) as usize];
        let metadata = METADATA[random.below(3) as usize];
        let count = least.max(2) + random.below(2) as usize;
        let equal = random.below(3) == 0;
        let size = 300 + random.below(800);
        let images: Vec<_> = (0..count).map(|number| world.beside(&format!("{number}.img"))).collect();
        let mut layout = format!("seed {seed}: {data}, {metadata}:");
        for image in &images {
            let mib = if equal { size } else { 300 + random.below(800) };
            fs::File::create(image).unwrap().set_len(mib << 20).unwrap();
            layout += &format!(" {mib}");
        }
        let paths: Vec<_> = images.iter().map(|image| image.to_str().unwrap()).collect();
        run("mkfs.btrfs", &[&["-q", "-f", "-d", data, "-m", metadata], &paths[..]].concat());
        let loops: Vec<_> =
            paths.iter().map(|path| run("losetup", &["-f", "--show", path]).trim().to_owned()).collect();
        let directory = world.directory();
        let options: Vec<_> = loops.iter().map(|device| format!("device={device}")).collect();
        run("mount", &["-t", "btrfs", "-o", &options.join(","), &loops[0], directory.to_str().unwrap()]);
        let available = sizes(&directory)[2];
        // Not to the brim: only an attempt tells the kernel that no chunk of metadata fits.
        let filled = available / 10 * random.below(9);
        if filled > 0 {
            let length = filled.to_string();
            run("fallocate", &["-l", &length, &world.at("f")]);
        }
        run("sync", &["-f", &world.at("")]);
        let theirs = sizes(&directory);
        assert!(unmount_kernel(&directory));
        for device in &loops {
            assert!(Command::new("losetup").args(["-d", device]).status().unwrap().success());
        }
        let mut arguments = Vec::new();
        for path in &paths[1..] {
            arguments.extend(["--device", path]);
        }
        arguments.extend(["mount", paths[0], directory.to_str().unwrap()]);
        // The kernel frees the loop devices some time later.
        crate::world::eventually("the images are free", || papilio(&arguments).status.success());
        let ours = sizes(&directory);
        world.unmount();
        let mut differs = theirs.iter().zip(&ours).any(|(theirs, ours)| theirs.abs_diff(*ours) > 1 << 20);
        // The kernel counts what three devices have left, which chunks of RAID10 cannot use.
        if data == "raid10" {
            differs = theirs[0].abs_diff(ours[0]) > 1 << 20 || ours[2] > theirs[2] + (1 << 20);
        }
        assert!(!differs, "{layout}, {filled} filled: the kernel {theirs:?}, ours {ours:?}");
    }
}
