//! Power losses at every moment of runs with fsyncs, by one thread and by several, with and without
//! a page cache. Acknowledged state must be there, as it was then or later, and the check must be
//! clean, even if the replay of the log itself loses power.
//!
//! `PAPILIO_FSYNC_STATES` sets the number of states to check, `PAPILIO_SEED` the first seed.

use fastrand::Rng;
use papilio::{CompressionChoice, MkfsFeature};
use papilio_format::items::file_extent::Compression;
use papilio_simulator::crash::{InFlight, Survival};
use papilio_simulator::fsyncs::{CheckedStates, FsyncRun, Shape, scope};
use papilio_simulator::{Configuration, Failure, Order, Scope, Turn};
use std::time::Duration;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Time to shorten the history of a failure.
const SHRINK: Duration = Duration::from_secs(300);
/// Operations per thread.
const OPERATIONS: u64 = 160;
/// Page cache size in bytes.
const CACHE: u64 = 2 << 20;

/// Returns shapes with their number of threads, and whether they have a page cache.
fn shapes() -> Vec<(Configuration, u8, bool)> {
    vec![
        (Configuration::new("default"), 1, false),
        (Configuration::new("cached").open(|open| open.cache_bytes(CACHE)), 1, true),
        (
            Configuration::new("node 4096, explicit holes")
                .mkfs(|mkfs| mkfs.node_size(4096).feature(MkfsFeature::NoHoles, false)),
            1,
            false,
        ),
        (Configuration::new("shared"), 3, false),
        (
            Configuration::new("mixed, zlib")
                .mkfs(|mkfs| mkfs.feature(MkfsFeature::MixedGroups, true))
                .open(|open| open.compress(CompressionChoice::new(Compression::Zlib))),
            1,
            false,
        ),
        (Configuration::new("cached, shared").open(|open| open.cache_bytes(CACHE)), 3, true),
    ]
}

#[test]
fn power_loss_keeps_acknowledged_fsyncs() {
    let wanted = setting("PAPILIO_FSYNC_STATES", 900);
    let first = setting("PAPILIO_SEED", 1);
    let shapes = shapes();
    let share = wanted.div_ceil(shapes.len() as u64).min(400);
    let (mut seen, mut fsyncs, mut round, mut in_place) = (CheckedStates::default(), 0, 0, 0);
    let (mut logs, mut commits) = (0, 0);
    let mut random = Rng::with_seed(first);
    let mut failures = Vec::new();
    while seen.states < wanted {
        for (configuration, threads, cached) in &shapes {
            let seed = first + round;
            round += 1;
            let moves = (round + round / shapes.len() as u64).is_multiple_of(2);
            let scope = Scope { moves, ..scope() };
            let (configuration, threads, cached) = (configuration.clone(), *threads, *cached);
            let shape = Shape { configuration, scope, threads, cached };
            let mut run = FsyncRun::new(shape, seed, OPERATIONS).expect("a run without crashes succeeds");
            fsyncs += run.fsyncs();
            let (more_logs, more_commits) = run.logs_and_commits();
            (logs, commits) = (logs + more_logs, commits + more_commits);
            in_place += run.in_place_files();
            let stride = (2 * run.len() as u64 / share).max(1) as usize;
            'run: for position in (round as usize % stride..=run.len()).step_by(stride) {
                run.advance(position);
                for survival in [
                    if position % 2 == 0 { Survival::Everything } else { Survival::Durable },
                    Survival::Some(random.u64(..)),
                ] {
                    let torn = random.bool();
                    let in_flight = if torn { InFlight::Torn } else { InFlight::Nothing };
                    let device = run.device(survival, in_flight);
                    let cuts = usize::from(seen.states % 8 == 0) * 2;
                    match run.verify(&device, cuts, &mut random) {
                        Ok(more) => seen += more,
                        Err(failure) => {
                            let report = run.report(&failure, SHRINK);
                            failures.push(format!("{survival:?}, {in_flight:?}: {report}"));
                            // One failure per run is enough.
                            break 'run;
                        }
                    }
                }
            }
            assert!(failures.len() < 4, "{}", failures.join("\n\n"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{round} runs with {fsyncs} fsyncs, {in_place} files in place: {seen:?}");
    println!("fsyncs of one thread: {logs} wrote a log, {commits} were commits");
    assert!(seen.logs > seen.states / 20, "too few states had a log to replay: {seen:?}");
}

/// Returns the first failure of a run.
fn first_failure(run: &mut FsyncRun) -> Option<Failure> {
    let mut random = Rng::with_seed(1);
    (0..=run.len()).find_map(|position| {
        run.advance(position);
        let device = run.device(Survival::Everything, InFlight::Nothing);
        run.verify(&device, 0, &mut random).err()
    })
}

/// Runs with a page cache that are judged as if they had none: pages are written back at any time,
/// which that promise does not allow.
#[test]
fn a_failure_is_reported_with_the_operations_that_it_needs() {
    let report = (1..40).find_map(|seed| {
        let shape = Shape {
            configuration: Configuration::new("cached").open(|open| open.cache_bytes(CACHE)),
            scope: scope(),
            threads: 1,
            cached: false,
        };
        let mut run = FsyncRun::new(shape, seed, OPERATIONS).unwrap();
        let failure = first_failure(&mut run)?;
        assert_eq!(failure.kind, "state");
        Some(run.report(&failure, SHRINK))
    });
    let report = report.expect("the wrong promise was kept");
    println!("{report}");
    let steps = report.lines().filter(|line| line.starts_with("    thread 0: ")).count();
    assert!((3..20).contains(&steps), "{report}");
}

#[test]
fn turns_of_threads_are_repeated_one_by_one_and_at_once() {
    let shape =
        Shape { configuration: Configuration::new("shared"), scope: scope(), threads: 3, cached: false };
    let mut first = FsyncRun::new(shape.clone(), 5, 40).unwrap();
    assert_eq!(first_failure(&mut first), None);
    let turns = first.turns();
    let of_thread = |turns: &[Turn], thread| -> Vec<Turn> {
        turns.iter().filter(|turn| turn.thread == thread).cloned().collect()
    };
    // Each thread has its operations and a sync.
    assert!((0..3).all(|thread| of_thread(turns, thread).len() == 41));
    let mut lengths = Vec::new();
    for order in [Order::OneByOne, Order::OneByOne, Order::AtOnce] {
        let mut again = FsyncRun::of(shape.clone(), 5, turns, order).unwrap();
        assert_eq!(first_failure(&mut again), None, "{order:?}");
        for thread in 0..3 {
            let found = of_thread(again.turns(), thread);
            let mut expected = of_thread(turns, thread);
            // The sync at the end of the list, and that of the repetition.
            expected.extend(expected.last().cloned());
            assert!(found == expected, "{order:?}: {found:#?}");
        }
        lengths.push(again.len());
    }
    assert_eq!(lengths[0], lengths[1], "one thread writes the same each time");
}
