//! Power losses at every moment of a run. The file system must hold the state of the last sync or
//! snapshot, or of the one in progress; the check must be clean, and the file system writable.
//!
//! `PAPILIO_CRASH_STATES` sets the number of states to check, `PAPILIO_SEED` the first seed.

use papilio::{CompressionChoice, MkfsFeature};
use papilio_format::items::file_extent::Compression;
use papilio_simulator::crash::{InFlight, Recorded, Survival, states_at};
use papilio_simulator::{Configuration, FileAt, Fill, NewFile, Operation, Scope, Text};
use std::time::Duration;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Time to shorten the history of a failure.
const SHRINK: Duration = Duration::from_secs(300);
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
        subvolumes: true,
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
                for (survival, in_flight) in states_at(seed, position) {
                    let writing = states % 6 == 0;
                    let device = recorded.device(survival, in_flight);
                    if let Err(failure) = recorded.verify(device, in_flight, writing) {
                        panic!("{survival:?}: {}", recorded.report(&failure, SHRINK));
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

/// A file that is overwritten in place has newer bytes than the last commit: a failure by this
/// model, which promises the bytes of the commit.
#[test]
fn a_failure_is_reported_with_the_operations_that_it_needs() {
    let scope = Scope { inodes: 20, file_bytes: 50_000, in_place: false, ..Scope::default() };
    let configuration = Configuration::new("default");
    let path = Text(b"/overwritten in place".to_vec());
    let write = |seed| Operation::Write {
        file: FileAt::Path(path.to_vec()),
        offset: 0,
        fill: Fill { length: 20_480, seed },
    };
    let needed = [
        Operation::Create { path: path.clone(), mode: 0o644, owner: (0, 0), new: NewFile::Regular },
        Operation::SetFlags { path: path.clone(), nodatacow: true, compress: false },
        write(3),
        Operation::Sync,
        write(5),
    ];
    let drawn = Recorded::new(&configuration, scope, 7, 60).unwrap().operations().to_vec();
    let mut operations = Vec::new();
    for (part, operation) in drawn.chunks(12).zip(&needed) {
        operations.extend_from_slice(part);
        operations.push(operation.clone());
    }
    let mut recorded = Recorded::of(&configuration, scope, 7, &operations).unwrap();
    let failure = (0..=recorded.len())
        .find_map(|position| {
            recorded.advance(position);
            let device = recorded.device(Survival::Everything, InFlight::Nothing);
            recorded.verify(device, InFlight::Nothing, false).err()
        })
        .expect("the overwritten bytes were not seen");
    assert_eq!(failure.kind, "content");
    let report = recorded.report(&failure, SHRINK);
    assert!(report.contains(&format!("5 of {} steps are needed", operations.len() + 1)), "{report}");
    for operation in &needed {
        assert!(report.contains(&format!("    {operation:?}")), "{report}");
    }
}
