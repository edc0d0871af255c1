//! Each device call of a run fails once, or with all calls after it. The run must return an error
//! and never panic. A failed commit must make the file system read-only, and everything committed
//! earlier must be intact.
//!
//! The second test uses file systems so small that space runs out everywhere: it must be reported,
//! and never fail the run.
//!
//! `PAPILIO_FAULTS` sets the number of runs, `PAPILIO_SEED` the first seed.

use papilio::MkfsFeature;
use papilio_device::Device;
use papilio_simulator::faults::{Fault, FaultRun};
use papilio_simulator::{
    Configuration, Counts, FileAt, Fill, Generator, NewFile, Operation, Scope, Session, Text,
};
use std::sync::Arc;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

#[test]
fn failed_device_call_returns_an_error() {
    let wanted = setting("PAPILIO_FAULTS", 300);
    let first = setting("PAPILIO_SEED", 1);
    let scope = Scope {
        inodes: 30,
        file_bytes: 120_000,
        sync_every: 8,
        remount_every: 0,
        subvolumes: true,
        ..Scope::default()
    };
    let configurations = [
        Configuration::new("default"),
        Configuration::new("mixed, discard")
            .mkfs(|mkfs| mkfs.feature(MkfsFeature::MixedGroups, true))
            .open(|open| open.discard(true).node_cache_bytes(64 << 10)),
        Configuration::new("node 4096, small cache")
            .mkfs(|mkfs| mkfs.node_size(4096))
            .open(|open| open.node_cache_bytes(64 << 10)),
    ];
    let share = wanted.div_ceil(configurations.len() as u64);
    let (mut runs, mut failed, mut latched, mut round) = (0, 0, 0, 0);
    while runs < wanted {
        for configuration in &configurations {
            let run = FaultRun::new(configuration, scope, first + round, 80).expect("mkfs");
            let calls = run.run(Fault::Never).expect("a run without faults succeeds").calls;
            let stride = (2 * calls / share).max(1);
            for number in (round % stride..calls).step_by(stride as usize) {
                for fault in [Fault::Once(number), Fault::From(number)] {
                    let outcome = run.run(fault).unwrap_or_else(|failure| panic!("{failure}"));
                    runs += 1;
                    failed += outcome.failed;
                    latched += u64::from(outcome.latched);
                }
            }
            round += 1;
        }
    }
    println!("{runs} faults: {failed} operations failed, {latched} times the file system became read-only");
    assert!(failed > runs / 4 && latched > 0, "{runs} faults, {failed} failed operations, {latched} latched");
}

#[test]
fn no_space_is_reported_at_every_size() {
    let operations = setting("PAPILIO_NO_SPACE_OPERATIONS", 400);
    let first = setting("PAPILIO_SEED", 1);
    let mixed = |mkfs: papilio::MkfsOptions| mkfs.feature(MkfsFeature::MixedGroups, true);
    let mut total = Counts::default();
    for step in 0..setting("PAPILIO_SIZES", 6) {
        let small = |configuration: Configuration, from: u64| {
            configuration.size(from + step * (1 << 20) + step * 4096)
        };
        for configuration in [
            small(Configuration::new("mixed").mkfs(mixed), 16 << 20),
            small(Configuration::new("node 4096").mkfs(|mkfs| mkfs.node_size(4096)), 110 << 20),
            small(Configuration::new("default"), 110 << 20),
        ] {
            let size = configuration.size;
            let scope = Scope { inodes: 1000, file_bytes: size / 2, subvolumes: false, ..Scope::default() };
            let seed = first + step;
            let fail =
                |failure: String| panic!("{}, {size} bytes, seed {seed}: {failure}", configuration.name);
            let device: Arc<dyn Device> = configuration.make().expect("mkfs");
            let mut session = Session::open(vec![device], configuration.open.clone()).expect("open");
            session.run(&mut Generator::new(seed, scope), operations).unwrap_or_else(fail);
            session.close().unwrap_or_else(fail);
            total += session.counts();
        }
    }
    println!("{total:?}");
    assert!(total.no_space > 0, "{total:?}");
}

/// A file that is overwritten in place has newer bytes than the last commit: a failure by this
/// model, which promises the bytes of the commit.
#[test]
fn a_failure_is_reported_with_the_operations_that_it_needs() {
    let path = Text(b"/overwritten in place".to_vec());
    let write = |seed| Operation::Write {
        file: FileAt::Path(path.to_vec()),
        offset: 0,
        fill: Fill { length: 20_480, seed },
    };
    let directory = |number: u32| Operation::Create {
        path: Text(format!("/directory {number}").into_bytes()),
        mode: 0o755,
        owner: (0, 0),
        new: NewFile::Directory,
    };
    let needed = [
        Operation::Create { path: path.clone(), mode: 0o644, owner: (0, 0), new: NewFile::Regular },
        Operation::SetFlags { path: path.clone(), nodatacow: true, compress: false },
        write(3),
        Operation::Sync,
        write(5),
    ];
    let pair = |(number, operation): (u32, &Operation)| [directory(number), operation.clone()];
    let operations: Vec<Operation> = (0..).zip(&needed).flat_map(pair).collect();
    let run = FaultRun::new(&Configuration::new("default"), Scope::default(), 1, 0).expect("mkfs");
    let calls = run.run_operations(&operations, Fault::Never).expect("it succeeds without faults").calls;
    // From some call of the last commit on.
    let failed = |number| run.run_operations(&operations, Fault::From(number)).err();
    let report = (0..calls).rev().find_map(failed).expect("the overwritten bytes were not seen");
    assert!(report.contains("5 of 11 steps are needed"), "{report}");
    for operation in &needed {
        assert!(report.contains(&format!("    {operation:?}")), "{report}");
    }
}
