//! Devices that report a write as done, and lose it or put it elsewhere, and flushes that do
//! nothing. Each answer afterwards is right, or an error.
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
const OF_RUN: u64 = 100;

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
    let mut seen: BTreeMap<Seen, u64> = BTreeMap::new();
    let mut told = 0;
    for round in 0.. {
        let seed = first + round;
        let configuration = &configurations[(round % 3) as usize];
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
                println!("{told} lies; seen: {seen:?}");
                assert!(seen.get(&Seen::Errors).is_some_and(|&count| count > wanted / 10), "{seen:?}");
                assert!(seen.contains_key(&Seen::Nothing), "{seen:?}");
                return;
            }
        }
    }
}
