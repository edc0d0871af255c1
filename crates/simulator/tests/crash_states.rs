//! Power losses at every moment of a run. The file system must hold the state of the last sync, or
//! of the sync in progress; the check must be clean, and the file system writable.
//!
//! `PAPILIO_CRASH_STATES` sets the number of states to check, `PAPILIO_SEED` the first seed.

use papilio::{CompressionChoice, MkfsFeature};
use papilio_format::items::file_extent::Compression;
use papilio_simulator::crash::{InFlight, Recorded, Survival};
use papilio_simulator::{Configuration, Scope};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Operations per run.
const OPERATIONS: u64 = 150;

fn configurations() -> Vec<Configuration> {
    vec![
        Configuration::new("default"),
        Configuration::new("node 4096, explicit holes, discard")
            .mkfs(|mkfs| mkfs.node_size(4096).feature(MkfsFeature::NoHoles, false))
            .open(|open| open.discard(true)),
        Configuration::new("mixed, zlib")
            .mkfs(|mkfs| mkfs.feature(MkfsFeature::MixedGroups, true))
            .open(|open| open.compress(CompressionChoice::new(Compression::Zlib))),
        Configuration::new("block group tree").mkfs(|mkfs| mkfs.feature(MkfsFeature::BlockGroupTree, true)),
        Configuration::new("no free space tree").mkfs(|mkfs| mkfs.feature(MkfsFeature::FreeSpaceTree, false)),
    ]
}

#[test]
fn power_loss_keeps_synced_state() {
    let wanted = setting("PAPILIO_CRASH_STATES", 450);
    let first = setting("PAPILIO_SEED", 1);
    let scope = Scope {
        inodes: 40,
        file_bytes: 150_000,
        sync_every: 9,
        balance_every: 40,
        remount_every: 60,
        in_place: false,
        ..Scope::default()
    };
    let configurations = configurations();
    // In a short run, each shape gets its share.
    let share = wanted.div_ceil(configurations.len() as u64);
    let (mut states, mut torn, mut written, mut syncs, mut round) = (0_u64, 0_u64, 0_u64, 0, 0);
    while states < wanted {
        for configuration in &configurations {
            let seed = first + round;
            let mut recorded = Recorded::new(configuration, scope, seed, OPERATIONS)
                .expect("a run without crashes succeeds");
            syncs += recorded.syncs();
            // Three states per moment; every moment, or as many as the share allows.
            let stride =
                (3 * recorded.len() as u64 / share.min(wanted.saturating_sub(states) + 1)).max(1) as usize;
            for position in (round as usize % stride..=recorded.len()).step_by(stride) {
                recorded.advance(position);
                let mix = seed.wrapping_mul(0x9e37_79b9).wrapping_add(position as u64);
                for (survival, in_flight) in [
                    (
                        Survival::Everything,
                        if position % 2 == 0 { InFlight::Torn } else { InFlight::Nothing },
                    ),
                    (Survival::Some(mix), InFlight::Torn),
                    if position % 2 == 0 {
                        (Survival::Durable, InFlight::Nothing)
                    } else {
                        (Survival::Some(mix ^ 0xabcd), InFlight::Nothing)
                    },
                ] {
                    let writing = states % 6 == 0;
                    let device = recorded.device(survival, in_flight);
                    if let Err(failure) = recorded.verify(device, in_flight, writing) {
                        panic!("{survival:?}: {failure}");
                    }
                    states += 1;
                    torn += u64::from(in_flight == InFlight::Torn);
                    written += u64::from(writing);
                }
            }
            round += 1;
        }
    }
    println!(
        "{states} states of {round} runs with {syncs} syncs: {torn} with a torn write, {written} continued"
    );
}
