//! Random operations on file systems of every shape, beside a model. Each answer and the whole
//! content must match the model, both through the open file system and after reopening; the check
//! must be clean.
//!
//! `PAPILIO_OPERATIONS` sets the number of operations per shape, `PAPILIO_SEED` the first seed.

use papilio::MkfsFeature;
use papilio_simulator::history::{History, Step};
use papilio_simulator::{Configuration, Counts, Generator, Scope, SharedRun};
use std::time::Duration;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// Operations between two full comparisons.
const ROUND: u64 = 250;

/// Time to shorten the history of a failure.
const SHRINK: Duration = Duration::from_secs(300);

fn run(configuration: &Configuration, seed: u64, operations: u64) -> Result<Counts, String> {
    let mut history = History::begin(configuration).map_err(|error| error.to_string())?;
    let full = configuration.size < 200 << 20;
    let (file_bytes, inodes) = if full { (configuration.size / 4, 400) } else { (1 << 20, 150) };
    let subvolumes = seed % 2000 >= 1000;
    let scope = Scope { file_bytes, inodes, subvolumes, balance_every: 150, ..Scope::default() };
    let mut generator = Generator::new(seed, scope);
    let mut run = || {
        let mut done = 0;
        while done < operations {
            history.draw(&mut generator, ROUND.min(operations - done))?;
            done += ROUND;
            history.take(Step::Verify)?;
            if done % (4 * ROUND) == 0 {
                history.take(Step::Reopen)?;
            }
        }
        history.take(Step::Reopen)
    };
    let result = run();
    result.map_err(|failure| history.report(&failure, SHRINK))?;
    Ok(history.counts())
}

#[test]
fn every_shape_matches_the_model() {
    let operations = setting("PAPILIO_OPERATIONS", 1500);
    let seed = setting("PAPILIO_SEED", 1);
    let mut total = Counts::default();
    let mut failures = Vec::new();
    for (index, configuration) in Configuration::matrix().into_iter().enumerate() {
        let seed = seed + 1000 * index as u64;
        match run(&configuration, seed, operations) {
            Ok(counts) => {
                println!("{}, seed {seed}: {counts:?}", configuration.name);
                total += counts;
            }
            Err(failure) => {
                failures.push(format!("{}, seed {seed}: {failure}", configuration.name));
            }
        }
    }
    println!("in all: {total:?}");
    assert!(failures.is_empty(), "{} failures: {}", failures.len(), failures.join("\n"));
    assert!(total.refused > 0 && total.no_space > 0 && total.syncs > 0, "{total:?}");
}

/// Gives each thread its own directory and model; a sync covers all threads.
fn together(configuration: &Configuration, seed: u64, threads: u8, operations: u64) -> Counts {
    let scope = Scope {
        wide_links: false,
        remount_every: 0,
        inodes: 60,
        file_bytes: configuration.size / 512,
        ..Scope::default()
    };
    let run = SharedRun::new(configuration.clone(), threads);
    run.draw(seed, scope, operations).unwrap_or_else(|failure| {
        let report = run.report(&failure, SHRINK);
        panic!("{}, {threads} threads, seed {seed}: {report}", configuration.name)
    })
}

#[test]
fn threads_match_their_models() {
    let operations = setting("PAPILIO_THREAD_OPERATIONS", 2400);
    let seed = setting("PAPILIO_SEED", 1);
    let mut total = Counts::default();
    let configurations = [
        Configuration::new("default").open(|open| open.dirty_bytes(1 << 20)),
        Configuration::new("node 4096").mkfs(|mkfs| mkfs.node_size(4096)),
        Configuration::new("small, mixed")
            .mkfs(|mkfs| mkfs.feature(MkfsFeature::MixedGroups, true))
            .size(64 << 20),
    ];
    for configuration in &configurations {
        for threads in [1, 4, 16] {
            total += together(configuration, seed, threads, operations / u64::from(threads));
        }
    }
    println!("{total:?}");
}
