//! Seeded mutations of send streams: a receive leaves everything else alone, and no part of a
//! stream looks whole. `PAPILIO_STREAMS` sets the number of streams (400), `PAPILIO_STREAMS_FROM`
//! the first seed (0).

use papilio_simulator::ReceiveTargets;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// One of so many runs is thorough.
const THOROUGH: u64 = 16;
/// The longest time of a run; most take a millisecond.
const LIMIT: Duration = Duration::from_secs(60);

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

#[test]
fn unchanged_streams_arrive_whole() {
    let targets = ReceiveTargets::new();
    for stream in 0..targets.streams() as u8 {
        for target in [0, 1] {
            let result = targets.run(&[stream, target], true).unwrap();
            assert_eq!((result.complete, result.incomplete, result.failed), (1, 0, 0), "stream {stream}");
            assert!(!result.error, "stream {stream}");
            // The first run ends inside of the stream, and the second one goes on.
            let result = targets.run(&[stream, target | 192, 1, 100], true).unwrap();
            assert_eq!((result.complete, result.incomplete), (1, 0), "stream {stream}, resumed");
        }
    }
}

#[test]
fn mutated_streams_change_nothing_else() {
    let (first, runs) = (number("PAPILIO_STREAMS_FROM", 0), number("PAPILIO_STREAMS", 400));
    let targets = ReceiveTargets::new();
    let (mut complete, mut errors, mut failed) = (0, 0, 0);
    let begun = Instant::now();
    for seed in first..first + runs {
        let mut random = fastrand::Rng::with_seed(seed);
        let changes = [1, 1, 2, 3, 5, 9][random.usize(..6)];
        let plan: Vec<u8> = (0..4 + changes * 12).map(|_| random.u8(..)).collect();
        let start = Instant::now();
        let thorough = seed % THOROUGH == 0;
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| targets.run(&plan, thorough)));
        let run = run.unwrap_or_else(|_| panic!("seed {seed} panicked"));
        let result = run.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!(start.elapsed() < LIMIT, "seed {seed} took {:?}", start.elapsed());
        complete += result.complete;
        failed += result.failed;
        errors += usize::from(result.error);
    }
    let rate = runs as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{runs} streams of about {} commands, {rate:.0} a second: {complete} subvolumes complete, \
         {errors} ended with an error, {failed} commands left out",
        targets.commands()
    );
    assert!(runs < 100 || (complete > 0 && errors > 0 && failed > 0), "the mutations do nothing");
}
