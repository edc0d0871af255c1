//! Limits of qgroups beside a model: EDQUOT is reported where a subvolume has a limit and at no
//! other, a write that meets it leaves a prefix of its data, and after power losses and failed
//! device calls quotas, limits and content are those of a commit.
//!
//! `PAPILIO_LIMIT_SEEDS` sets the number of seeds, `PAPILIO_SEED` the first seed, `PAPILIO_SHRINK`
//! the seconds to shorten the history of a failure.

use papilio::CompressionChoice;
use papilio_format::items::file_extent::Compression;
use papilio_simulator::crash::{Recorded, states_at};
use papilio_simulator::faults::{Fault, FaultRun};
use papilio_simulator::history::{History, Step};
use papilio_simulator::{Configuration, Counts, Generator, Scope};
use std::time::Duration;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Time to shorten the history of a failure.
fn shrink() -> Duration {
    Duration::from_secs(setting("PAPILIO_SHRINK", 300))
}

fn configurations() -> [Configuration; 4] {
    [
        Configuration::new("default"),
        Configuration::new("node 4096, cached")
            .mkfs(|mkfs| mkfs.node_size(4096))
            .open(|open| open.cache_bytes(4 << 20)),
        Configuration::new("zstd").open(|open| open.compress(CompressionChoice::new(Compression::Zstd))),
        Configuration::new("small").size(110 << 20),
    ]
}

fn scope() -> Scope {
    Scope { inodes: 60, file_bytes: 300_000, subvolumes: true, limits: true, ..Scope::default() }
}

fn run(configuration: &Configuration, seed: u64) -> Counts {
    let mut history = History::begin(configuration).unwrap();
    let mut generator = Generator::new(seed, scope());
    let mut run = || {
        for _ in 0..3 {
            history.draw(&mut generator, 150)?;
            history.take(Step::Verify)?;
        }
        history.take(Step::Reopen)
    };
    let result = run();
    if let Err(failure) = result {
        panic!("{}, seed {seed}: {}", configuration.name, history.report(&failure, shrink()));
    }
    history.counts()
}

#[test]
fn limits_match_the_model() {
    let first = setting("PAPILIO_SEED", 1);
    let mut total = Counts::default();
    for seed in first..first + setting("PAPILIO_LIMIT_SEEDS", 24) {
        let configurations = configurations();
        total += run(&configurations[seed as usize % configurations.len()], seed);
    }
    println!("{total:?}");
    assert!(total.over_limit > 0 && total.refused > 0, "{total:?}");
}

/// Scopes for crashes: a few files, and many syncs.
fn short() -> Scope {
    Scope { inodes: 30, file_bytes: 120_000, sync_every: 9, in_place: false, ..scope() }
}

#[test]
fn power_loss_keeps_limits_and_content() {
    let first = setting("PAPILIO_SEED", 1);
    let (mut states, mut points) = (0_u64, 0);
    for seed in first..first + setting("PAPILIO_LIMIT_SEEDS", 24) / 4 {
        let configurations = configurations();
        let configuration = &configurations[[0, 2][seed as usize % 2]];
        let scope = Scope { remount_every: 60, ..short() };
        let mut recorded = Recorded::new(configuration, scope, seed, 120)
            .unwrap_or_else(|failure| panic!("{}, seed {seed}: {failure}", configuration.name));
        points += recorded.syncs();
        let stride = (recorded.len() / 20).max(1);
        for position in (seed as usize % stride..=recorded.len()).step_by(stride) {
            recorded.advance(position);
            for (survival, in_flight) in states_at(seed, position) {
                let device = recorded.device(survival, in_flight);
                if let Err(failure) = recorded.verify(device, in_flight, states % 6 == 0) {
                    panic!("{survival:?}: {}", recorded.report(&failure, shrink()));
                }
                states += 1;
            }
        }
    }
    println!("{states} states, {points} commits");
    assert!(states > 0);
}

#[test]
fn failed_device_call_beside_limits_returns_an_error() {
    let first = setting("PAPILIO_SEED", 1);
    let (mut runs, mut failed) = (0, 0);
    for seed in first..first + setting("PAPILIO_LIMIT_SEEDS", 24) / 8 {
        let scope = Scope { remount_every: 0, ..short() };
        let run = FaultRun::new(&configurations()[0], scope, seed, 80).unwrap();
        let calls = run.run(Fault::Never).unwrap_or_else(|failure| panic!("{failure}")).calls;
        for number in (seed % 7..calls).step_by((calls / 20).max(1) as usize) {
            for fault in [Fault::Once(number), Fault::From(number)] {
                let outcome = run.run(fault).unwrap_or_else(|failure| panic!("{failure}"));
                runs += 1;
                failed += outcome.failed;
            }
        }
    }
    println!("{runs} faults: {failed} operations failed");
    assert!(failed > 0);
}
