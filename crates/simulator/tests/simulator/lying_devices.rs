//! Devices that report a write as done, and lose it or put it elsewhere, and flushes that do
//! nothing. Each answer afterwards is right, or an error. Where the other devices of a set have a
//! second copy of everything, it is right, unless a first superblock is damaged.
//!
//! `PAPILIO_LIES` sets the number of lies, `PAPILIO_SEED` the first seed.

use papilio::format::items::chunk::RaidProfile;
use papilio::{Compression, CompressionChoice};
use papilio_simulator::lies::{Lie, LyingRun, Seen};
use papilio_simulator::{Configuration, Scope};
use std::collections::BTreeMap;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Lies about one run.
const OF_RUN: u64 = 50;

#[test]
fn no_lie_of_a_device_is_believed() {
    let wanted = setting("PAPILIO_LIES", 300);
    let first = setting("PAPILIO_SEED", 1);
    let scope =
        Scope { inodes: 40, file_bytes: 200_000, sync_every: 8, remount_every: 40, ..Scope::default() };
    let configurations = [
        Configuration::new("default"),
        // Without a second copy of tree blocks nothing hides a lie about them.
        Configuration::new("one copy").mkfs(|mkfs| mkfs.metadata_profile(RaidProfile::Single)),
        Configuration::new("one copy, nodes of 4096, zstd")
            .mkfs(|mkfs| mkfs.metadata_profile(RaidProfile::Single).node_size(4096))
            .open(|open| open.compress(CompressionChoice::new(Compression::Zstd))),
    ];
    let seen = tell(&configurations, wanted, scope, first);
    println!("{wanted} lies; seen: {seen:?}");
    assert!(seen.get(&Seen::Errors).is_some_and(|&count| count > wanted / 10), "{seen:?}");
    assert!(seen.contains_key(&Seen::Nothing), "{seen:?}");
}

#[test]
fn no_lie_of_one_device_in_a_set_is_believed() {
    let wanted = setting("PAPILIO_LIES", 300);
    let first = setting("PAPILIO_SEED", 1);
    let scope =
        Scope { inodes: 40, file_bytes: 200_000, sync_every: 8, remount_every: 40, ..Scope::default() };
    let set = |name, data, metadata, devices| {
        Configuration::new(name)
            .mkfs(|mkfs| mkfs.data_profile(data).metadata_profile(metadata))
            .devices(devices)
    };
    // Data without checksums may differ between copies.
    let mirrored = [
        set("RAID1", RaidProfile::Raid1, RaidProfile::Raid1, 2),
        set("RAID10", RaidProfile::Raid10, RaidProfile::Raid10, 4),
        set("RAID1C3", RaidProfile::Raid1c3, RaidProfile::Raid1c3, 3),
    ];
    let seen = tell(&mirrored, wanted / 2, Scope { in_place: false, ..scope }, first);
    println!("{} lies to mirrors; seen: {seen:?}", wanted / 2);
    let superblocks = seen.get(&Seen::Superblock).copied().unwrap_or(0);
    assert_eq!(seen.get(&Seen::Nothing), Some(&(wanted / 2 - superblocks)), "{seen:?}");
    assert!(superblocks < wanted / 40, "{seen:?}");
    let others = [
        set("RAID0", RaidProfile::Raid0, RaidProfile::Raid1, 2),
        set("RAID5", RaidProfile::Raid5, RaidProfile::Raid1, 3),
        set("RAID6", RaidProfile::Raid6, RaidProfile::Raid1c3, 4),
    ];
    let seen = tell(&others, wanted / 2, scope, first);
    println!("{} lies to other sets; seen: {seen:?}", wanted / 2);
    assert!(seen.contains_key(&Seen::Nothing), "{seen:?}");
}

/// Tells lies about runs of each configuration in turn. Returns how many readers saw what.
fn tell(configurations: &[Configuration], wanted: u64, scope: Scope, first: u64) -> BTreeMap<Seen, u64> {
    let mut seen: BTreeMap<Seen, u64> = BTreeMap::new();
    let mut told = 0;
    for round in 0.. {
        let seed = first + round;
        let configuration = &configurations[round as usize % configurations.len()];
        let run = LyingRun::new(configuration, scope, seed, 120).unwrap_or_else(|error| panic!("{error}"));
        let mut random = fastrand::Rng::with_seed(seed);
        for number in 0..OF_RUN {
            // The last writes count most: later ones cover many of the first.
            let any = random.usize(0..run.writes());
            let write = if random.bool() { any } else { run.writes() - 1 - any / 8 };
            let lie = match number % 4 {
                0 => Lie::Lost(write),
                1 => Lie::Moved(write, random.usize(0..run.writes())),
                2 => Lie::Strayed(write, random.u64(0..run.size() / 4096) * 4096),
                _ => Lie::Flush(run.flushes() - 1 - random.usize(0..run.flushes()) / 4),
            };
            *seen.entry(run.tell(lie).unwrap_or_else(|error| panic!("{error}"))).or_default() += 1;
            told += 1;
            if told == wanted {
                return seen;
            }
        }
    }
    unreachable!("the rounds do not end")
}
